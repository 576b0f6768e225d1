"""Pictures: decoded, made small, and prepared for a model."""

from hardsight.data.pixels._images import EXTENSIONS as EXTENSIONS
from hardsight.data.pixels._images import decode as decode
from hardsight.data.pixels._images import decode_file as decode_file
from hardsight.data.pixels._images import eight_bit as eight_bit
from hardsight.data.pixels._images import picture as picture
from hardsight.data.pixels._images import thumbnail as thumbnail
from hardsight.data.pixels._prepared import PixelContent as PixelContent
from hardsight.data.pixels._prepared import PixelOptions as PixelOptions
from hardsight.data.pixels._prepared import applied_preprocessing as applied_preprocessing
from hardsight.data.pixels._prepared import check_collated as check_collated
from hardsight.data.pixels._prepared import decisive as decisive
from hardsight.data.pixels._prepared import model_input as model_input
from hardsight.data.pixels._prepared import pixels_of as pixels_of
from hardsight.data.pixels._prepared import prepared as prepared
from hardsight.data.pixels._prepared import raw_pixels as raw_pixels
from hardsight.data.pixels._prepared import stated_preprocessing as stated_preprocessing
from hardsight.data.pixels._prepared import wanted_preprocessing as wanted_preprocessing
