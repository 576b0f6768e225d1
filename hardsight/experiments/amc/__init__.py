"""Tables and figures of AMC-Loss, and what they measure."""

from hardsight.experiments.amc._fig7 import amc_fig7 as amc_fig7
from hardsight.experiments.amc._figs import amc_figs as amc_figs
from hardsight.experiments.amc._figs import feature_measures as feature_measures
from hardsight.experiments.amc._table1 import amc_table1 as amc_table1
