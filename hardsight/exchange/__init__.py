"""Turn a run into a patch of its labels, a corrected copy of its data, or files for other tools."""

from hardsight.exchange._apply import Applied as Applied
from hardsight.exchange._apply import apply_patch as apply_patch
from hardsight.exchange._decided import patch_of as patch_of
from hardsight.exchange._export import TOOLS as TOOLS
from hardsight.exchange._export import Exported as Exported
from hardsight.exchange._export import export_run as export_run
