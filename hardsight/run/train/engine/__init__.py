"""The parts of training that subclass Lightning; importing this package loads Lightning."""

from hardsight.run.train.engine._module import Tally as Tally
from hardsight.run.train.engine._module import TrainModule as TrainModule
from hardsight.run.train.engine._records import BEST as BEST
from hardsight.run.train.engine._records import LAST as LAST
from hardsight.run.train.engine._records import PREVIOUS as PREVIOUS
from hardsight.run.train.engine._records import KeptCheckpoints as KeptCheckpoints
from hardsight.run.train.engine._records import ProgressBar as ProgressBar
from hardsight.run.train.engine._records import RunRecorder as RunRecorder
from hardsight.run.train.engine._records import plain_state as plain_state
from hardsight.run.train.engine._watch import evaluation_tracking as evaluation_tracking
from hardsight.run.train.engine._watch import watched_sets as watched_sets
