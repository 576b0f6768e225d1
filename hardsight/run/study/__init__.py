"""Statistics of finished tables: people, degradation, training dynamics."""

from hardsight.run.study._degradation import DegradationStudy as DegradationStudy
from hardsight.run.study._degradation import ScoreByLevel as ScoreByLevel
from hardsight.run.study._degradation import degradation_study as degradation_study
from hardsight.run.study._dynamics import LEARNED_ACCURACY as LEARNED_ACCURACY
from hardsight.run.study._dynamics import Curves as Curves
from hardsight.run.study._dynamics import DynamicsStudy as DynamicsStudy
from hardsight.run.study._dynamics import Histories as Histories
from hardsight.run.study._dynamics import Observation as Observation
from hardsight.run.study._dynamics import RunDynamics as RunDynamics
from hardsight.run.study._dynamics import concordance as concordance
from hardsight.run.study._dynamics import learned_epoch as learned_epoch
from hardsight.run.study._dynamics import observations as observations
from hardsight.run.study._dynamics import read_histories as read_histories
from hardsight.run.study._dynamics import run_dynamics as run_dynamics
from hardsight.run.study._dynamics import settled_epoch as settled_epoch
from hardsight.run.study._folder import MAY_CHANGE as MAY_CHANGE
from hardsight.run.study._human import HumanStudy as HumanStudy
from hardsight.run.study._human import Hypothesis as Hypothesis
from hardsight.run.study._human import ScoreAgainstPeople as ScoreAgainstPeople
from hardsight.run.study._human import human_study as human_study
from hardsight.run.study._study import study_degradation as study_degradation
from hardsight.run.study._study import study_dynamics as study_dynamics
from hardsight.run.study._study import study_folder as study_folder
from hardsight.run.study._study import study_human as study_human
from hardsight.run.study._tables import StudyTable as StudyTable
from hardsight.run.study._tables import said_p as said_p
