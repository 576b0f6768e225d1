"""Selection of the rows of a table that are worth keeping, and lists of rows as files."""

from hardsight.selection._keep import rows_to_keep as rows_to_keep
from hardsight.selection._rows import RowList as RowList
from hardsight.selection._rows import read_rows as read_rows
from hardsight.selection._rows import write_rows as write_rows
from hardsight.selection._select import RULES as RULES
from hardsight.selection._select import even_quotas as even_quotas
from hardsight.selection._select import select as select
