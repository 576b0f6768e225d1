"""Self-training: select the unlabelled examples to trust, and their labels."""

from hardsight.selftrain._quality import SelectionQuality as SelectionQuality
from hardsight.selftrain._quality import selection_quality as selection_quality
from hardsight.selftrain._select import COMPARISONS as COMPARISONS
from hardsight.selftrain._select import EMPTIES as EMPTIES
from hardsight.selftrain._select import MRKLD_RULES as MRKLD_RULES
from hardsight.selftrain._select import RULES as RULES
from hardsight.selftrain._select import SOFT_RULES as SOFT_RULES
from hardsight.selftrain._select import Selection as Selection
from hardsight.selftrain._select import pseudo_labels as pseudo_labels
from hardsight.selftrain._select import select as select
from hardsight.selftrain._soft import soft_pseudo_labels as soft_pseudo_labels
from hardsight.selftrain._thresholds import class_thresholds as class_thresholds
