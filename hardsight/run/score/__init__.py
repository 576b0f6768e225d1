"""Score any model on any labelled data into one table with a row per example."""

from hardsight.run.score._logistic import Fitted as Fitted
from hardsight.run.score._logistic import HeadFitter as HeadFitter
from hardsight.run.score._rows import MAY_CHANGE as MAY_CHANGE
from hardsight.run.score._score import SAMPLES as SAMPLES
from hardsight.run.score._score import ScoreConfig as ScoreConfig
from hardsight.run.score._score import run_score as run_score
from hardsight.run.score._score import score as score
