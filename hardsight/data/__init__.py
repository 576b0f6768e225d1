"""Labelled data in every form a user may name it, read without trusting it.

Start with :func:`open_source`; :func:`batches` feeds what it returns to a model. Importing this
package loads no torch.
"""

from hardsight.data._batches import Batch as Batch
from hardsight.data._batches import batches as batches
from hardsight.data._catalogue import DATASETS as DATASETS
from hardsight.data._degrade import CONTRAST_LEVELS as CONTRAST_LEVELS
from hardsight.data._degrade import NOISE_LEVELS as NOISE_LEVELS
from hardsight.data._degrade import DegradedSource as DegradedSource
from hardsight.data._degrade import reduced_contrast as reduced_contrast
from hardsight.data._degrade import with_uniform_noise as with_uniform_noise
from hardsight.data._embeddings import EmbeddingSource as EmbeddingSource
from hardsight.data._example import Example as Example
from hardsight.data._example import ExampleSource as ExampleSource
from hardsight.data._folder import UnlabelledFolder as UnlabelledFolder
from hardsight.data._human import human_frequency as human_frequency
from hardsight.data._images import thumbnail as thumbnail
from hardsight.data._label_noise import with_label_errors as with_label_errors
from hardsight.data._label_noise import with_transitions as with_transitions
from hardsight.data._long_tail import long_tailed_counts as long_tailed_counts
from hardsight.data._long_tail import long_tailed_rows as long_tailed_rows
from hardsight.data._memory import MemorySource as MemorySource
from hardsight.data._memory import decoded as decoded
from hardsight.data._open import open_source as open_source
from hardsight.data._pixels import model_input as model_input
from hardsight.data._prepared import PixelContent as PixelContent
from hardsight.data._prepared import applied_preprocessing as applied_preprocessing
from hardsight.data._prepared import pixels_of as pixels_of
