"""Models by name, their weights and their preprocessing; and small networks of our own."""

from hardsight.models._load import LoadedModel as LoadedModel
from hardsight.models._load import load_model as load_model
from hardsight.models._small_cnn import SmallCNN as SmallCNN
