"""Find the classifier head of any model: its weights, and the embeddings that enter it."""

from hardsight.heads._capture import Forward as Forward
from hardsight.heads._capture import capture as capture
from hardsight.heads._capture import head_layer as head_layer
from hardsight.heads._capture import live_class_weights as live_class_weights
from hardsight.heads._capture import live_weight as live_weight
from hardsight.heads._capture import watch as watch
from hardsight.heads._find import find_head as find_head
from hardsight.heads._find import find_output as find_output
from hardsight.heads._find import verify_head as verify_head
from hardsight.heads._forward import call_model as call_model
from hardsight.heads._forward import logit_rows as logit_rows
from hardsight.heads._forward import logits_of as logits_of
from hardsight.heads._forward import which_output as which_output
from hardsight.heads._head import Head as Head
from hardsight.heads._head import LinearForm as LinearForm
from hardsight.heads._head import agree as agree
from hardsight.heads._head import decided_by_bias as decided_by_bias
from hardsight.heads._head import differing_rows as differing_rows
from hardsight.heads._head import linear_form as linear_form
from hardsight.heads._layers import unwrapped as unwrapped
from hardsight.heads._places import PlacedRows as PlacedRows
from hardsight.heads._places import examples_at_places as examples_at_places
from hardsight.heads._places import head_with_bias as head_with_bias
from hardsight.heads._places import rows_at_places as rows_at_places
