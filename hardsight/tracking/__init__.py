"""Training dynamics: every example in every epoch, from training's own forward pass.

Start with :class:`HardnessTracker`; :func:`with_index` adds the index that it needs to a dataset.
"""

from hardsight.registry import SUMMARIES as SUMMARIES
from hardsight.tracking._dataset import IndexedDataset as IndexedDataset
from hardsight.tracking._dataset import with_index as with_index
from hardsight.tracking._gradients import GradientNorms as GradientNorms
from hardsight.tracking._sampler import ORDERS as ORDERS
from hardsight.tracking._sampler import HardnessSampler as HardnessSampler
from hardsight.tracking._sampler import hardness_by_number as hardness_by_number
from hardsight.tracking._steps import SCORE_OF as SCORE_OF
from hardsight.tracking._summaries import angle_velocity as angle_velocity
from hardsight.tracking._summaries import area_under_margin as area_under_margin
from hardsight.tracking._summaries import early_el2n as early_el2n
from hardsight.tracking._summaries import final_avh as final_avh
from hardsight.tracking._summaries import first_learned_epoch as first_learned_epoch
from hardsight.tracking._summaries import forgetting_events as forgetting_events
from hardsight.tracking._summaries import map_confidence as map_confidence
from hardsight.tracking._summaries import map_correctness as map_correctness
from hardsight.tracking._summaries import map_variability as map_variability
from hardsight.tracking._summaries import mean_avh as mean_avh
from hardsight.tracking._summaries import strongest_rival as strongest_rival
from hardsight.tracking._summaries import suspicion as suspicion
from hardsight.tracking._tracker import HardnessTracker as HardnessTracker
