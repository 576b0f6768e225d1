import io
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hardsight.data import thumbnail
from hardsight.data.pixels import decode, decode_file
from hardsight.errors import BadExampleError

# red | green over blue | white, so that every rotation and flip is visible
CORNERS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], dtype=np.uint8)


def saved(image, format="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def decoded(image, format="PNG", **options):
    return decode(saved(image, format, **options))


@pytest.mark.parametrize(
    ("image", "mode", "value"),
    [
        (Image.new("RGB", (3, 2), (1, 2, 3)), "RGB", (1, 2, 3)),
        (Image.new("L", (3, 2), 7), "L", 7),
        (Image.new("1", (3, 2), 1), "L", 255),
        (Image.new("LA", (3, 2), (9, 0)), "L", 9),
        (Image.new("RGBA", (3, 2), (1, 2, 3, 0)), "RGB", (1, 2, 3)),
        (Image.new("I;16", (3, 2), 257 * 100), "L", 100),
        (Image.new("I;16", (3, 2), 65535), "L", 255),
    ],
    ids=["RGB", "L", "1-bit", "LA", "RGBA", "16-bit", "16-bit white"],
)
def test_png_modes_become_rgb_or_grey_with_their_values(image, mode, value):
    got = decoded(image)
    assert (got.mode, got.size, got.getpixel((2, 1))) == (mode, (3, 2), value)


def test_sixteen_bits_are_scaled_and_not_clipped():
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    got = np.asarray(decoded(Image.fromarray(ramp)))
    np.testing.assert_array_equal(got, np.arange(256).reshape(16, 16))


def test_sixteen_bit_tiff_is_scaled_too():
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    got = np.asarray(decoded(Image.fromarray(ramp), "TIFF"))
    np.testing.assert_array_equal(got, np.arange(256).reshape(16, 16))


def chunk(kind, body):
    """One chunk of a PNG file, for images Pillow does not write."""
    checksum = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + checksum


def test_sixteen_bit_rgb_png_is_scaled():
    row = b"\0" + b"".join(struct.pack(">HHH", 65535, 257 * 128, 0) for _ in range(2))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row))
    assert decode(png + chunk(b"IEND", b"")).getpixel((0, 0)) == (255, 128, 0)


def test_palette_gives_its_colours():
    image = Image.fromarray(CORNERS).quantize(4)
    np.testing.assert_array_equal(np.asarray(decoded(image)), CORNERS)


def test_palette_with_transparency_gives_its_colours():
    image = Image.fromarray(CORNERS).quantize(4)
    got = decoded(image, transparency=bytes([0, 255, 128, 255]))
    np.testing.assert_array_equal(np.asarray(got), CORNERS)


def test_cmyk_jpeg_gives_the_colours_it_shows():
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    got = decoded(red, "JPEG", quality=95)
    assert got.mode == "RGB"
    assert np.abs(np.asarray(got).astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.0, 0.5, 1.0]], [[0, 128, 255]]),
        ([[0.0, 51.0, 255.0]], [[0, 51, 255]]),
        ([[0.0, 257.0, 65535.0]], [[0, 1, 255]]),
        ([[-1.0, 0.0, 3.0]], [[0, 64, 255]]),
        ([[np.nan, 1.0, np.inf]], [[0, 255, 0]]),
    ],
    ids=["unit", "8-bit", "16-bit", "stretched", "non-finite"],
)
def test_float_tiff_is_read_on_the_scale_of_its_values(values, expected):
    got = decoded(Image.fromarray(np.array(values, dtype=np.float32)), "TIFF")
    np.testing.assert_array_equal(np.asarray(got), expected)


def test_32_bit_integer_tiff_is_read_on_the_scale_of_its_values():
    image = Image.fromarray(np.array([[0, 257, 65535]], dtype=np.int32))
    np.testing.assert_array_equal(np.asarray(decoded(image, "TIFF")), [[0, 1, 255]])


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (1, CORNERS),
        (2, CORNERS[:, ::-1]),
        (3, CORNERS[::-1, ::-1]),
        (4, CORNERS[::-1]),
        (5, CORNERS.transpose(1, 0, 2)),
        (6, np.rot90(CORNERS, -1)),
        (7, np.rot90(CORNERS, 2).transpose(1, 0, 2)),
        (8, np.rot90(CORNERS)),
    ],
)
def test_exif_rotation_is_undone(format, orientation, turned):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    got = decoded(Image.fromarray(CORNERS), format, exif=exif, **options)
    np.testing.assert_array_equal(np.asarray(got), turned)


def test_exif_rotation_of_a_jpeg_swaps_its_sides():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(Image.new("RGB", (30, 10)), "JPEG", exif=exif).size == (10, 30)


def test_unreadable_exif_does_not_spoil_the_image():
    broken = saved(Image.new("L", (4, 4), 50), "PNG", exif=b"Exif\0\0garbage")
    assert decode(broken).getpixel((0, 0)) == 50


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_animations_give_their_first_frame(format):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    got = decoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert got.getpixel((1, 1)) == (255, 0, 0)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"])
def test_truncated_images_are_bad(format):
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    content = saved(Image.fromarray(pixels), format)
    with pytest.raises(BadExampleError, match=r"damaged image|not an image"):
        decode(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty: 0 bytes"),
        (b"hello, this is a text file\n" * 20, "not an image in a known format"),
        (b"\0" * 1000, "not an image in a known format"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "not an image|damaged image"),
        (b"\xff\xd8\xff\xe0", "not an image|damaged image"),
    ],
)
def test_what_is_no_image_is_bad(content, message):
    with pytest.raises(BadExampleError, match=message):
        decode(content)


@given(st.data())
@settings(derandomize=True, max_examples=150, deadline=None)
def test_damaged_bytes_give_an_image_or_a_bad_example_and_nothing_else(data):
    format = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]))
    content = bytearray(saved(Image.fromarray(CORNERS).resize((20, 20)), format))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode(bytes(content)).mode in ("L", "RGB")
    except BadExampleError as err:
        assert "\n" not in str(err)  # noqa: PT017


def test_postscript_is_never_opened_since_that_would_start_ghostscript():
    eps = saved(Image.new("RGB", (4, 4)), "EPS")
    assert Image.open(io.BytesIO(eps)).format == "EPS"  # Pillow itself would
    with pytest.raises(BadExampleError, match="not an image in a known format"):
        decode(eps)


def test_an_image_above_the_pixel_limit_is_bad_and_not_decoded():
    # black and white, so that a hundred million pixels are few bytes
    assert decode(saved(Image.new("1", (10_000, 10_000)))).size == (10_000, 10_000)
    message = "too large: 10000 x 10001 pixels, the limit is 100,000,000"
    with pytest.raises(BadExampleError, match=message):
        decode(saved(Image.new("1", (10_000, 10_001))))


def test_a_decompression_bomb_is_bad_and_costs_nothing():
    # a PNG of 200,000 x 200,000 pixels by its header
    header = struct.pack(">IIBBBBB", 200_000, 200_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
    with pytest.raises(BadExampleError, match="too large"):
        decode(png + chunk(b"IEND", b""))


def test_files_that_cannot_be_opened_are_bad(tmp_path):
    with pytest.raises(BadExampleError, match="cannot be opened: No such file"):
        decode_file(tmp_path / "gone.png")
    with pytest.raises(BadExampleError, match="not a regular file"):
        decode_file(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadExampleError, match="not a regular file"):
        decode_file(tmp_path / "pipe.png")


def test_a_file_without_read_permission_is_bad(tmp_path):
    file = tmp_path / "secret.png"
    file.write_bytes(saved(Image.new("L", (2, 2))))
    file.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:  # root may read everything; nobody may not
            os.seteuid(65534)
        with pytest.raises(BadExampleError, match="cannot be opened: Permission denied"):
            decode_file(file)
    finally:
        os.seteuid(user)


def opened(content):
    return Image.open(io.BytesIO(content))


def test_thumbnails_shrink_large_images_and_keep_small_ones():
    assert opened(thumbnail(Image.new("RGB", (400, 200)), size=96)).size == (96, 48)
    small = Image.fromarray(CORNERS)
    np.testing.assert_array_equal(np.asarray(opened(thumbnail(small))), CORNERS)


def test_thumbnails_of_photos_are_small_in_bytes():
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    content = thumbnail(Image.fromarray(noise))
    assert opened(content).format == "JPEG"
    assert len(content) < 12_000


@pytest.mark.parametrize(
    "content",
    [
        CORNERS,
        CORNERS.transpose(2, 0, 1),
        CORNERS / 255,
        torch.tensor(CORNERS).permute(2, 0, 1),
        torch.tensor(CORNERS).permute(2, 0, 1) / 255,
        (torch.tensor(CORNERS).permute(2, 0, 1) / 255).to(torch.bfloat16),
        (torch.tensor(CORNERS).permute(2, 0, 1) / 255 - 0.5) / 0.2,
        torch.tensor(CORNERS)[None].permute(0, 3, 1, 2),
        CORNERS.astype(np.int64),
        CORNERS.astype(np.uint16) * 257,
    ],
    ids=["HWC", "CHW", "unit", "tensor", "unit tensor", "bfloat16", "normalised", "batch of one",
         "int64", "uint16"],
)  # fmt: skip
def test_thumbnails_of_arrays_and_tensors_show_the_image(content):
    np.testing.assert_array_equal(np.asarray(opened(thumbnail(content))), CORNERS)


@pytest.mark.parametrize(
    "content",
    [np.zeros(512), torch.zeros(3), np.zeros((2, 5, 7, 9)), np.zeros((20, 20, 20)), "text", None,
     {"input_ids": [1]}, np.zeros((0, 5)), np.array([["a"] * 4] * 4)],
)  # fmt: skip
def test_what_does_not_look_like_an_image_has_no_thumbnail(content):
    assert thumbnail(content) is None


def test_a_thumbnail_of_non_finite_values_is_still_an_image():
    values = np.full((8, 8), np.nan)
    values[0, 0] = np.inf
    assert opened(thumbnail(values)).size == (8, 8)
