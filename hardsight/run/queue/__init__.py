"""Choose which examples of an unlabelled pool to label next."""

from hardsight.run.queue._queue import queue as queue
from hardsight.run.queue._rank import RULES as RULES
from hardsight.run.queue._rank import k_centres as k_centres
from hardsight.run.queue._rank import ranked as ranked
