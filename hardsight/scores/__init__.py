"""Scores: functions of tensors that return one number per example, with range and direction."""

from hardsight.registry import SCORES as SCORES
from hardsight.scores._avh import angular_margin as angular_margin
from hardsight.scores._avh import angular_visual_confidence as angular_visual_confidence
from hardsight.scores._avh import angular_visual_hardness as angular_visual_hardness
from hardsight.scores._avh import class_normalized_feature_norm as class_normalized_feature_norm
from hardsight.scores._avh import feature_norm as feature_norm
from hardsight.scores._avh import target_angle as target_angle
from hardsight.scores._logits import conditional_energy as conditional_energy
from hardsight.scores._logits import el2n as el2n
from hardsight.scores._logits import entropy as entropy
from hardsight.scores._logits import free_energy as free_energy
from hardsight.scores._logits import logit_margin as logit_margin
from hardsight.scores._logits import min_energy as min_energy
from hardsight.scores._logits import model_confidence as model_confidence
from hardsight.scores._summary import TiledHead as TiledHead
from hardsight.scores._summary import angle_summary as angle_summary
from hardsight.scores._summary import head_summaries as head_summaries
from hardsight.scores._summary import logit_summaries as logit_summaries
from hardsight.scores._summary import logit_summary as logit_summary
from hardsight.scores._summary import target_summary as target_summary
from hardsight.scores._tiles import AngleSummary as AngleSummary
from hardsight.scores._tiles import Summaries as Summaries
