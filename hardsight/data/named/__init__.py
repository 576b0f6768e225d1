"""Datasets by name: what is known of them, and where their files lie."""

from hardsight.data.named._catalogue import DATASETS as DATASETS
from hardsight.data.named._named import named_source as named_source
