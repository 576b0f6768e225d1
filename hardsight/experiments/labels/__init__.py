"""Planted label errors, found again by every score there is."""

from hardsight.experiments.labels._errors import label_errors as label_errors
