import numpy as np
import pytest
from PIL import Image

from hardsight.data import model_input
from hardsight.errors import BadExampleError, OptionError
from hardsight.preprocessing import Preprocessing


def noise(height, width, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_pixels_are_scaled_shifted_and_put_channels_first():
    pixels = noise(4, 6)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    got = model_input(Image.fromarray(pixels), Preprocessing(mean=mean, std=std))
    expected = (pixels.astype(np.float64) / 255 - mean) / std
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("height", "width", "resized", "corner"),
    [
        # torchvision's Resize(32) + CenterCrop(28): short side 32, long side truncated
        (50, 100, (32, 64), (2, 18)),
        (100, 50, (64, 32), (18, 2)),
        (45, 64, (32, 45), (2, 8)),
        (10, 10, (32, 32), (2, 2)),
    ],
)
def test_images_are_resized_by_their_short_side_and_cropped_in_the_centre(
    height, width, resized, corner
):
    image = Image.fromarray(noise(height, width))
    got = model_input(image, Preprocessing(size=(28, 28), crop=28 / 32, interpolation="bicubic"))
    whole = np.asarray(image.resize(resized[::-1], Image.Resampling.BICUBIC))
    top, left = corner
    expected = whole[top : top + 28, left : left + 28].transpose(2, 0, 1) / 255
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_squashing_gives_the_whole_image():
    image = Image.fromarray(noise(30, 60))
    got = model_input(image, Preprocessing(size=(16, 12), squash=True))
    expected = np.asarray(image.resize((12, 16), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(got, expected.transpose(2, 0, 1) / 255, atol=1e-6)


def test_an_image_of_the_right_size_is_left_alone():
    pixels = noise(8, 8, 1)
    got = model_input(Image.fromarray(pixels), Preprocessing(size=(8, 8)))
    np.testing.assert_allclose(got, pixels[None] / 255, atol=1e-7)


@pytest.mark.parametrize(
    ("channels", "mean", "shape"),
    [(None, (0.0,), (1, 4, 4)), (3, (0.0,), (3, 4, 4)), (None, (0.1, 0.2, 0.3), (3, 4, 4))],
)
def test_grey_images_get_the_channels_the_model_wants(channels, mean, shape):
    how = Preprocessing(channels=channels, mean=mean)
    assert model_input(Image.new("L", (4, 4)), how).shape == shape
    assert model_input(np.zeros((4, 4), dtype=np.float32), how).shape == shape


def test_colour_becomes_grey_by_the_usual_weights():
    red = Image.new("RGB", (2, 2), (255, 0, 0))
    assert model_input(red, Preprocessing(channels=1))[0, 0, 0] == pytest.approx(0.299, abs=2e-3)
    array = np.asarray(red).astype(np.float32) / 255
    assert model_input(array, Preprocessing(channels=1))[0, 0, 0] == pytest.approx(0.299)


def test_wide_arrays_keep_their_precision():
    sixteen = np.array([[0, 1, 65535]], dtype=np.uint16)
    np.testing.assert_allclose(
        model_input(sixteen, Preprocessing()), [[[0, 1 / 65535, 1]]], rtol=1e-6
    )
    floats = np.array([[[0.25, -1.0, 7.0]]], dtype=np.float32)
    np.testing.assert_allclose(model_input(floats, Preprocessing())[:, 0, 0], [0.25, -1.0, 7.0])


def test_float_arrays_are_resized_like_images():
    pixels = noise(20, 30)
    how = Preprocessing(size=(10, 10))
    got = model_input(pixels.astype(np.float32) / 255, how)
    np.testing.assert_allclose(got, model_input(Image.fromarray(pixels), how), atol=1.5 / 255)


def test_odd_modes_of_a_users_images_are_accepted():
    got = model_input(Image.new("I;16", (2, 2), 65535), Preprocessing(channels=3))
    np.testing.assert_allclose(got, np.ones((3, 2, 2)), atol=1e-6)


def test_an_extremely_elongated_image_is_bad_instead_of_filling_the_memory():
    with pytest.raises(BadExampleError, match="too elongated: 1000000 x 1 pixels would become"):
        model_input(Image.new("L", (1_000_000, 1)), Preprocessing(size=(224, 224)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Preprocessing(size=(4, 4), interpolation="bilinaer"), "Did you mean 'bilinear'"),
        (Preprocessing(mean=(0.1, 0.2)), "mean and std with 1 value for grey images, got 2"),
        (Preprocessing(mean=(0.1, 0.2, 0.3), channels=1), "1 value for grey images, got 3"),
        (Preprocessing(channels=4), "1 or 3 channels, got 4"),
        (Preprocessing(std=(0.0,)), "std without zeros"),
    ],
)
def test_preprocessing_that_cannot_be_applied_is_refused(how, message):
    with pytest.raises(OptionError, match=message):
        model_input(Image.new("L", (8, 8)), how)
