"""What people decided about labels, as a file: read, written, merged; nothing else is needed."""

from hardsight.patch._files import PATCH_SUFFIXES as PATCH_SUFFIXES
from hardsight.patch._files import read_patch as read_patch
from hardsight.patch._files import write_patch as write_patch
from hardsight.patch._merge import RESOLUTIONS as RESOLUTIONS
from hardsight.patch._merge import Conflict as Conflict
from hardsight.patch._merge import conflicts_of as conflicts_of
from hardsight.patch._merge import merged as merged
from hardsight.patch._merge import resolved as resolved
from hardsight.patch._patch import CANNOT_TELL as CANNOT_TELL
from hardsight.patch._patch import COLUMNS as COLUMNS
from hardsight.patch._patch import DROP as DROP
from hardsight.patch._patch import KEEP as KEEP
from hardsight.patch._patch import RELABEL as RELABEL
from hardsight.patch._patch import Changes as Changes
from hardsight.patch._patch import Patch as Patch
from hardsight.patch._text import defused as defused
