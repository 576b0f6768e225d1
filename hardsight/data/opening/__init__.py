"""Open data that a user names, or has in Python, as a source of examples or embeddings."""

from hardsight.data.opening._open import data_marks as data_marks
from hardsight.data.opening._open import open_source as open_source
from hardsight.data.opening._open import reopened_source as reopened_source
from hardsight.data.opening._open import unlabelled_source as unlabelled_source
