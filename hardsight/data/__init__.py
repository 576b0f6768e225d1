"""Open labelled data in any common form, without trusting the files that hold it.

Start with :func:`open_source`; :func:`batches` feeds what it returns to a model. Importing this
package loads no torch.
"""

from hardsight.data._batches import Batch as Batch
from hardsight.data._batches import batches as batches
from hardsight.data._cache import WORTH_KEEPING as WORTH_KEEPING
from hardsight.data._cache import CacheEntry as CacheEntry
from hardsight.data._cache import PictureCache as PictureCache
from hardsight.data._cache import decoded_picture as decoded_picture
from hardsight.data._cache import kept_pictures as kept_pictures
from hardsight.data._groups import group_columns as group_columns
from hardsight.data.formats import EmbeddingSource as EmbeddingSource
from hardsight.data.formats import MemorySource as MemorySource
from hardsight.data.formats import UnlabelledFolder as UnlabelledFolder
from hardsight.data.formats import decoded as decoded
from hardsight.data.formats import human_frequency as human_frequency
from hardsight.data.named import DATASETS as DATASETS
from hardsight.data.opening import data_marks as data_marks
from hardsight.data.opening import open_source as open_source
from hardsight.data.opening import reopened_source as reopened_source
from hardsight.data.opening import unlabelled_source as unlabelled_source
from hardsight.data.pixels import PixelContent as PixelContent
from hardsight.data.pixels import applied_preprocessing as applied_preprocessing
from hardsight.data.pixels import model_input as model_input
from hardsight.data.pixels import pixels_of as pixels_of
from hardsight.data.pixels import raw_pixels as raw_pixels
from hardsight.data.pixels import thumbnail as thumbnail
from hardsight.data.source import Example as Example
from hardsight.data.source import ExampleSource as ExampleSource
from hardsight.data.variants import CONTRAST_LEVELS as CONTRAST_LEVELS
from hardsight.data.variants import NOISE_LEVELS as NOISE_LEVELS
from hardsight.data.variants import DegradedSource as DegradedSource
from hardsight.data.variants import long_tailed_counts as long_tailed_counts
from hardsight.data.variants import long_tailed_rows as long_tailed_rows
from hardsight.data.variants import reduced_contrast as reduced_contrast
from hardsight.data.variants import with_label_errors as with_label_errors
from hardsight.data.variants import with_transitions as with_transitions
from hardsight.data.variants import with_uniform_noise as with_uniform_noise
