"""Planted label errors: found again by every score there is, and fixed."""

from hardsight.experiments.labels._errors import label_errors as label_errors
from hardsight.experiments.labels._fixing import label_fixing as label_fixing
