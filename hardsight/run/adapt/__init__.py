"""Self-training to an unlabelled domain, round by round."""

from hardsight.run.adapt._adapt import RESULT as RESULT
from hardsight.run.adapt._adapt import AdaptResult as AdaptResult
from hardsight.run.adapt._adapt import adapt as adapt
from hardsight.run.adapt._adapt import run_adapt as run_adapt
from hardsight.run.adapt._config import ADAPT_RULES as ADAPT_RULES
from hardsight.run.adapt._config import BASELINES as BASELINES
from hardsight.run.adapt._config import AdaptConfig as AdaptConfig
from hardsight.run.adapt._config import StageConfig as StageConfig
from hardsight.run.adapt._config import TargetConfig as TargetConfig
from hardsight.run.adapt._rounds import rule_notes as rule_notes
