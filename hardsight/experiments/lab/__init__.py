"""What every experiment works with: data, models, results, the registry and the runner."""

from hardsight.experiments.lab._compare import compared as compared
from hardsight.experiments.lab._compare import corrected as corrected
from hardsight.experiments.lab._compare import in_words as in_words
from hardsight.experiments.lab._compare import verdict as verdict
from hardsight.experiments.lab._lab import Lab as Lab
from hardsight.experiments.lab._lab import Outputs as Outputs
from hardsight.experiments.lab._registry import DATASETS as DATASETS
from hardsight.experiments.lab._registry import EXPERIMENTS as EXPERIMENTS
from hardsight.experiments.lab._registry import SHORT_NAMES as SHORT_NAMES
from hardsight.experiments.lab._registry import Experiment as Experiment
from hardsight.experiments.lab._registry import experiment as experiment
from hardsight.experiments.lab._result import Cell as Cell
from hardsight.experiments.lab._result import Claim as Claim
from hardsight.experiments.lab._result import Figure as Figure
from hardsight.experiments.lab._result import Result as Result
from hardsight.experiments.lab._result import Spread as Spread
from hardsight.experiments.lab._result import Table as Table
from hardsight.experiments.lab._result import said as said
from hardsight.experiments.lab._result import spread as spread
from hardsight.experiments.lab._run import run_experiment as run_experiment
