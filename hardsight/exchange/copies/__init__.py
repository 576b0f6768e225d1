"""A corrected copy of data, a file per form in which it is stored."""

from hardsight.exchange.copies._arrays import write_arrays as write_arrays
from hardsight.exchange.copies._folder import RECORD as RECORD
from hardsight.exchange.copies._folder import write_folder as write_folder
from hardsight.exchange.copies._idx import write_idx as write_idx
from hardsight.exchange.copies._lines import write_lines as write_lines
from hardsight.exchange.copies._links import Links as Links
from hardsight.exchange.copies._list import write_list as write_list
from hardsight.exchange.copies._parquet import write_parquet_copy as write_parquet_copy
from hardsight.exchange.copies._place import staged as staged
