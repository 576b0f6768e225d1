"""Every table and figure of the three papers, by name: ``hardsight experiment list``.

An experiment is one file with one function from a :class:`Lab` and a setting to a
:class:`Result`; the lines below list and register them.
"""

from hardsight.experiments._avh_degradation import avh_degradation as avh_degradation
from hardsight.experiments._avh_dynamics import avh_dynamics as avh_dynamics
from hardsight.experiments._avh_geometry import avh_geometry as avh_geometry
from hardsight.experiments._avh_human import avh_human as avh_human
from hardsight.experiments._lab import Lab as Lab
from hardsight.experiments._lab import Outputs as Outputs
from hardsight.experiments._registry import EXPERIMENTS as EXPERIMENTS
from hardsight.experiments._registry import Experiment as Experiment
from hardsight.experiments._registry import experiment as experiment
from hardsight.experiments._result import Claim as Claim
from hardsight.experiments._result import Figure as Figure
from hardsight.experiments._result import Result as Result
from hardsight.experiments._result import Spread as Spread
from hardsight.experiments._result import Table as Table
from hardsight.experiments._result import said as said
from hardsight.experiments._result import spread as spread
from hardsight.experiments._run import run_experiment as run_experiment
