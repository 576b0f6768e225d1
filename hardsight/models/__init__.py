"""Models by name, their weights and their preprocessing; and small networks of our own."""

from hardsight.models._classifier import SmallCNN as SmallCNN
from hardsight.models._estimators import Estimator as Estimator
from hardsight.models._estimators import is_estimator as is_estimator
from hardsight.models._estimators import value_name as value_name
from hardsight.models._known import ClassNames as ClassNames
from hardsight.models._known import StoredModel as StoredModel
from hardsight.models._known import description_of as description_of
from hardsight.models._known import load_stored as load_stored
from hardsight.models._load import LoadedModel as LoadedModel
from hardsight.models._load import is_as_made as is_as_made
from hardsight.models._load import load_model as load_model
from hardsight.models._papers import CNN10 as CNN10
from hardsight.models._papers import AMCNet as AMCNet
from hardsight.models._papers import ELAttackNet as ELAttackNet
from hardsight.models._papers import ELMNISTNet as ELMNISTNet
from hardsight.models._papers import MNISTNet as MNISTNet
from hardsight.models._registry import MODELS as MODELS
from hardsight.models._standard import VGG19 as VGG19
from hardsight.models._standard import AlexNet as AlexNet
from hardsight.models._standard import DenseNet121 as DenseNet121
from hardsight.models._standard import EfficientNetLite0 as EfficientNetLite0
from hardsight.models._standard import EfficientNetSmall as EfficientNetSmall
from hardsight.models._standard import ResNet18 as ResNet18
from hardsight.models._standard import ResNet50 as ResNet50
from hardsight.models._weights import load_weights as load_weights
