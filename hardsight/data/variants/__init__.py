"""Data changed on purpose: degraded pictures, planted label errors and long tails."""

from hardsight.data.variants._degrade import CONTRAST_LEVELS as CONTRAST_LEVELS
from hardsight.data.variants._degrade import NOISE_LEVELS as NOISE_LEVELS
from hardsight.data.variants._degrade import DegradedSource as DegradedSource
from hardsight.data.variants._degrade import reduced_contrast as reduced_contrast
from hardsight.data.variants._degrade import with_uniform_noise as with_uniform_noise
from hardsight.data.variants._label_noise import with_label_errors as with_label_errors
from hardsight.data.variants._label_noise import with_transitions as with_transitions
from hardsight.data.variants._long_tail import long_tailed_counts as long_tailed_counts
from hardsight.data.variants._long_tail import long_tailed_rows as long_tailed_rows
