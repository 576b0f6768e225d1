"""Every table and figure of the three papers, by name: ``hardsight experiment list``.

An experiment is one file with one function from a :class:`Lab` and a setting to a
:class:`Result`; the lines below list and register them. A long one has parts beside it under its
own name: ``_claims`` (the paper's sentences), ``_draw`` (pictures), and what both read. What
experiments of one paper share is in ``_amc_recipes``, ``_avh_models``, ``_el_recipes`` (what is
trained) and ``_el_seeds`` (values over seeds); what all share, in ``_lab`` and ``_result``.
"""

from hardsight.experiments._amc_fig7 import amc_fig7 as amc_fig7
from hardsight.experiments._amc_figs import amc_figs as amc_figs
from hardsight.experiments._amc_table1 import amc_table1 as amc_table1
from hardsight.experiments._avh_degradation import avh_degradation as avh_degradation
from hardsight.experiments._avh_dynamics import avh_dynamics as avh_dynamics
from hardsight.experiments._avh_geometry import avh_geometry as avh_geometry
from hardsight.experiments._avh_human import avh_human as avh_human
from hardsight.experiments._avh_selftrain import avh_selftrain as avh_selftrain
from hardsight.experiments._avh_table5 import avh_table5 as avh_table5
from hardsight.experiments._el_combine import el_combine as el_combine
from hardsight.experiments._el_fig5 import el_fig5 as el_fig5
from hardsight.experiments._el_fig6 import el_fig6 as el_fig6
from hardsight.experiments._el_fig7 import el_fig7 as el_fig7
from hardsight.experiments._el_table1 import el_table1 as el_table1
from hardsight.experiments._el_table2 import el_table2 as el_table2
from hardsight.experiments._el_table3 import el_table3 as el_table3
from hardsight.experiments._el_table4 import el_table4 as el_table4
from hardsight.experiments._el_table5 import el_table5 as el_table5
from hardsight.experiments._lab import Lab as Lab
from hardsight.experiments._lab import Outputs as Outputs
from hardsight.experiments._label_errors import label_errors as label_errors
from hardsight.experiments._registry import EXPERIMENTS as EXPERIMENTS
from hardsight.experiments._registry import SHORT_NAMES as SHORT_NAMES
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
