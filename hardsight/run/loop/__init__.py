"""What every loop over data shares: device, progress, seeds, provenance, the model and its head."""

from hardsight.run.loop._device import borrowed as borrowed
from hardsight.run.loop._device import chosen_device as chosen_device
from hardsight.run.loop._device import chosen_layout as chosen_layout
from hardsight.run.loop._device import chosen_precision as chosen_precision
from hardsight.run.loop._device import chosen_workers as chosen_workers
from hardsight.run.loop._device import fed_in_its_dtype as fed_in_its_dtype
from hardsight.run.loop._device import forward_context as forward_context
from hardsight.run.loop._device import moved as moved
from hardsight.run.loop._heads import verified_head as verified_head
from hardsight.run.loop._models import check_labels_agree as check_labels_agree
from hardsight.run.loop._models import class_names as class_names
from hardsight.run.loop._models import loaded_model as loaded_model
from hardsight.run.loop._models import wanted_preprocessing as wanted_preprocessing
from hardsight.run.loop._pictures import pictures as pictures
from hardsight.run.loop._progress import Advance as Advance
from hardsight.run.loop._progress import progress as progress
from hardsight.run.loop._provenance import state_digest as state_digest
from hardsight.run.loop._provenance import tensors_digest as tensors_digest
from hardsight.run.loop._provenance import values_digest as values_digest
from hardsight.run.loop._provenance import versions as versions
from hardsight.run.loop._random import random_states_kept as random_states_kept
from hardsight.run.loop._random import seed_generators as seed_generators
from hardsight.run.loop._random import seeded as seeded
from hardsight.run.loop._seeds import generator as generator
from hardsight.run.loop._seeds import seed_of as seed_of
