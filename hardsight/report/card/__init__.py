"""The page of an evaluation card."""

from hardsight.report.card._card import write_card as write_card
