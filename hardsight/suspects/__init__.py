"""Judge the labels of a table: which are suspect, why, and how many are wrong.

Tables, pages and the review app all use this package. It does not need torch.
"""

from hardsight.suspects._duplicates import repeats_of as repeats_of
from hardsight.suspects._duplicates import twins_of as twins_of
from hardsight.suspects._groups import AMBIGUOUS as AMBIGUOUS
from hardsight.suspects._groups import DUPLICATE as DUPLICATE
from hardsight.suspects._groups import FINE as FINE
from hardsight.suspects._groups import GROUPS as GROUPS
from hardsight.suspects._groups import HARD as HARD
from hardsight.suspects._groups import UNKNOWN as UNKNOWN
from hardsight.suspects._groups import UNLIKE as UNLIKE
from hardsight.suspects._groups import WRONG as WRONG
from hardsight.suspects._share import LEAST_ROWS as LEAST_ROWS
from hardsight.suspects._share import never_rising as never_rising
from hardsight.suspects._suspects import Suspects as Suspects
from hardsight.suspects._suspects import most_suspect as most_suspect
from hardsight.suspects._suspects import suspects_frame as suspects_frame
from hardsight.suspects._suspects import suspects_of as suspects_of
