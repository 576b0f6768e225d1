"""Every table and figure of the three papers, by name: ``hardsight experiment list``.

A room per paper, ``labels`` for planted label errors, and ``acting`` for what is done by hardness.
An experiment is one file with two functions: one measures, from a :class:`Lab` and a setting to
numbers and figures; the other asks, from the stored numbers to tables and questions, which the lab
judges by one rule. The lines below list and register them. A long one has parts beside it under its
own name: ``_claims`` (the paper's sentences), ``_draw`` (pictures), and what both read. What is
trained is in the room's ``_recipes`` or ``_models``. What all experiments share is in ``lab``; they
import that room whole as ``kit``, since their ``lab`` is the :class:`Lab` that they are handed.
"""

from hardsight.experiments.acting import active as active
from hardsight.experiments.acting import curriculum as curriculum
from hardsight.experiments.acting import few_labels as few_labels
from hardsight.experiments.acting import groups as groups
from hardsight.experiments.acting import pruning as pruning
from hardsight.experiments.amc import amc_fig7 as amc_fig7
from hardsight.experiments.amc import amc_figs as amc_figs
from hardsight.experiments.amc import amc_table1 as amc_table1
from hardsight.experiments.avh import avh_adversarial as avh_adversarial
from hardsight.experiments.avh import avh_degradation as avh_degradation
from hardsight.experiments.avh import avh_dynamics as avh_dynamics
from hardsight.experiments.avh import avh_geometry as avh_geometry
from hardsight.experiments.avh import avh_human as avh_human
from hardsight.experiments.avh import avh_selftrain as avh_selftrain
from hardsight.experiments.avh import avh_table5 as avh_table5
from hardsight.experiments.el import el_combine as el_combine
from hardsight.experiments.el import el_fig5 as el_fig5
from hardsight.experiments.el import el_fig6 as el_fig6
from hardsight.experiments.el import el_fig7 as el_fig7
from hardsight.experiments.el import el_fig7_small as el_fig7_small
from hardsight.experiments.el import el_gradients as el_gradients
from hardsight.experiments.el import el_graph as el_graph
from hardsight.experiments.el import el_table1 as el_table1
from hardsight.experiments.el import el_table2 as el_table2
from hardsight.experiments.el import el_table3 as el_table3
from hardsight.experiments.el import el_table4 as el_table4
from hardsight.experiments.el import el_table5 as el_table5
from hardsight.experiments.el import el_translation as el_translation
from hardsight.experiments.lab import EXPERIMENTS as EXPERIMENTS
from hardsight.experiments.lab import SHORT_NAMES as SHORT_NAMES
from hardsight.experiments.lab import Claim as Claim
from hardsight.experiments.lab import Experiment as Experiment
from hardsight.experiments.lab import Figure as Figure
from hardsight.experiments.lab import Lab as Lab
from hardsight.experiments.lab import Outputs as Outputs
from hardsight.experiments.lab import Result as Result
from hardsight.experiments.lab import Spread as Spread
from hardsight.experiments.lab import Table as Table
from hardsight.experiments.lab import experiment as experiment
from hardsight.experiments.lab import run_experiment as run_experiment
from hardsight.experiments.lab import said as said
from hardsight.experiments.lab import spread as spread
from hardsight.experiments.lab import usual_folder as usual_folder
from hardsight.experiments.labels import label_errors as label_errors
from hardsight.experiments.labels import label_fixing as label_fixing
