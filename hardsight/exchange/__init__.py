"""What leaves a run: a patch of its labels, and a corrected copy of its data."""

from hardsight.exchange._apply import Applied as Applied
from hardsight.exchange._apply import apply_patch as apply_patch
from hardsight.exchange._decided import patch_of as patch_of
