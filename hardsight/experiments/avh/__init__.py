"""Tables and figures of Angular Visual Hardness, and what they train on and measure."""

from hardsight.experiments.avh._adversarial import avh_adversarial as avh_adversarial
from hardsight.experiments.avh._adversarial import travelled as travelled
from hardsight.experiments.avh._degradation import avh_degradation as avh_degradation
from hardsight.experiments.avh._dynamics import avh_dynamics as avh_dynamics
from hardsight.experiments.avh._geometry import avh_geometry as avh_geometry
from hardsight.experiments.avh._geometry_measures import GeometrySetting as GeometrySetting
from hardsight.experiments.avh._geometry_measures import grown as grown
from hardsight.experiments.avh._geometry_measures import sphere as sphere
from hardsight.experiments.avh._human import avh_human as avh_human
from hardsight.experiments.avh._models import degraded as degraded
from hardsight.experiments.avh._models import (
    with_simulated_annotators as with_simulated_annotators,
)
from hardsight.experiments.avh._selftrain import avh_selftrain as avh_selftrain
from hardsight.experiments.avh._table5 import angular_accuracy as angular_accuracy
from hardsight.experiments.avh._table5 import avh_table5 as avh_table5
