"""Evaluate one or more models on an evaluation card."""

from hardsight.run.evaluate._card import CARD as CARD
from hardsight.run.evaluate._card import EPSILONS as EPSILONS
from hardsight.run.evaluate._card import EPSILONS_L2 as EPSILONS_L2
from hardsight.run.evaluate._card import FORMAT as FORMAT
from hardsight.run.evaluate._card import MAY_CHANGE as MAY_CHANGE
from hardsight.run.evaluate._card import EvaluateConfig as EvaluateConfig
from hardsight.run.evaluate._card import evaluation_card as evaluation_card
from hardsight.run.evaluate._card import run_evaluate as run_evaluate
from hardsight.run.evaluate._explain import Explainer as Explainer
from hardsight.run.evaluate._explain import serve_maps as serve_maps
from hardsight.run.evaluate._subjects import named_model as named_model
