"""Datasets that can be opened by name: what is known about them, and where their files are."""

from hardsight.data.named._catalogue import DATASETS as DATASETS
from hardsight.data.named._named import named_source as named_source
