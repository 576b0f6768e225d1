"""Fused twins of the plain scores and losses, for heads too wide to build an ``[N, C]`` matrix.

The plain PyTorch versions are the reference. These compute the same values in one or two passes
over the class weights, in memory that does not grow with ``N * C``. Triton is imported at the first
call.
"""

from hardsight.kernels._head import HeadStatistics as HeadStatistics
from hardsight.kernels._head import head_statistics as head_statistics
from hardsight.kernels._log_odds import angular_log_odds as angular_log_odds
from hardsight.kernels._log_odds import linear_log_odds as linear_log_odds
from hardsight.kernels._loss import angular_loss as angular_loss
from hardsight.kernels._loss import linear_loss as linear_loss
from hardsight.kernels._support import autocast_dtype as autocast_dtype
from hardsight.kernels._support import fused_inputs as fused_inputs
from hardsight.kernels._support import is_fusible as is_fusible
from hardsight.kernels._support import is_supported as is_supported
from hardsight.kernels._support import linear_inputs as linear_inputs
from hardsight.kernels._support import tell_of_mixed_dtypes as tell_of_mixed_dtypes
