"""Texts: how they are shown, and turned into tokens for a model."""

from hardsight.data.texts._sentences import UNKNOWN as UNKNOWN
from hardsight.data.texts._sentences import Sentence as Sentence
from hardsight.data.texts._sentences import Sentences as Sentences
from hardsight.data.texts._sentences import TargetTokens as TargetTokens
from hardsight.data.texts._tokens import TRUNCATED as TRUNCATED
from hardsight.data.texts._tokens import Texts as Texts
from hardsight.data.texts._tokens import Tokens as Tokens
from hardsight.data.texts._tokens import padded_rows as padded_rows
from hardsight.data.texts._tokens import warn_of_other_words as warn_of_other_words
