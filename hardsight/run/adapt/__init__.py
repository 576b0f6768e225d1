"""Adapt a model to an unlabelled domain by self-training, round by round."""

from hardsight.run.adapt._adapt import RESULT as RESULT
from hardsight.run.adapt._adapt import AdaptResult as AdaptResult
from hardsight.run.adapt._adapt import adapt as adapt
from hardsight.run.adapt._adapt import run_adapt as run_adapt
from hardsight.run.adapt._config import ADAPT_RULES as ADAPT_RULES
from hardsight.run.adapt._config import BASELINES as BASELINES
from hardsight.run.adapt._config import AdaptConfig as AdaptConfig
from hardsight.run.adapt._config import StageConfig as StageConfig
from hardsight.run.adapt._config import TargetConfig as TargetConfig
from hardsight.run.adapt._data import Pool as Pool
from hardsight.run.adapt._data import Target as Target
from hardsight.run.adapt._data import opened_target as opened_target
from hardsight.run.adapt._labels import AdaptBatches as AdaptBatches
from hardsight.run.adapt._labels import RoundLabels as RoundLabels
from hardsight.run.adapt._labels import adaptation_loss as adaptation_loss
from hardsight.run.adapt._rounds import rule_notes as rule_notes
from hardsight.run.adapt._select import compared as compared
from hardsight.run.adapt._select import seen_by as seen_by
from hardsight.run.adapt._select import selected_by as selected_by
