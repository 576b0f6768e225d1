"""Image processors of transformers: each is followed to the pixel, or refused by name."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import transformers
from PIL import Image

import hardsight as hs
from hardsight.data import model_input
from hardsight.errors import HardsightWarning, ModelError
from hardsight.models import load_model
from hardsight.preprocessing import Preprocessing

# processors of classifiers: to refuse one of these would lock its models out
FOLLOWED = {
    "Beit", "Bit", "Blip", "CLIP", "Chameleon", "ChineseCLIP", "ConvNext", "DeiT", "EfficientNet",
    "Levit", "MobileNetV1", "MobileNetV2", "MobileViT", "Perceiver", "PoolFormer", "Pvt",
    "Segformer", "Siglip", "ViT",
}  # fmt: skip
FOLLOWED_UNSEEN = {"DINOv3ViT"}  # needs torchvision to be built, and its settings say it all
OTHER_THAN_THESE = {"Auto", "Base", ""}

KINDS = sorted({
    match[1]
    for name in dir(transformers)
    if (match := re.fullmatch(r"(\w*?)ImageProcessor(?:Pil|Fast)?", name))
} - OTHER_THAN_THESE)  # fmt: skip

SIZES = [(33, 50), (50, 33), (32, 32), (61, 47), (20, 90), (5, 7), (130, 97)]


def pictures(grey: bool = False):
    draw = np.random.default_rng(1)
    for height, width in SIZES:
        shape = (height, width) if grey else (height, width, 3)
        yield Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model; every test writes the processor beside it."""
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic", num_labels=2
    )
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes with pictures of one shape."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(2)
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(2):
            pixels = draw.integers(0, 256, (40, 57, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def real(kind: str, config: dict):
    """The processor of transformers, without torchvision; ``None`` if there is none."""
    for name in (f"{kind}ImageProcessorPil", f"{kind}ImageProcessor"):
        try:
            return getattr(transformers, name).from_dict(dict(config))
        except Exception:  # not in this version, or not without torchvision or another argument
            continue
    return None


def written(folder, kind: str, config: dict) -> str:
    """The model with this processor beside it, by its name."""
    content = {"image_processor_type": f"{kind}ImageProcessor", **config}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    return f"hf:{folder}"


def refusal(model: str, photos) -> str:
    """What a run says about a processor that it does not follow; empty if it follows it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers, about settings of its own
            hs.score(model, photos, scores="entropy", device="cpu")
    except ModelError as err:
        return str(err)
    return ""


# Pillow and torchvision resize bytes with other roundings, torchvision even with others by the
# processor's instructions (AVX2 or not); neither is further than a grey level from the exact value,
# nor are they from each other. We follow Pillow. Any other setting shows as more than a level.
ONE_LEVEL = 1.01


def resizes_bytes_with_torchvision(processor) -> bool:
    """Whether there is no processor of this kind that uses Pillow, nor one that resizes floats."""
    bases = {base.__name__ for base in type(processor).__mro__}
    in_float = type(processor).__name__.startswith("DINOv3ViT")  # rescales before it resizes
    return bool(bases & {"TorchvisionBackend", "BaseImageProcessorFast"}) and not in_float


def assert_same(how: Preprocessing, processor) -> None:
    levels = ONE_LEVEL if resizes_bytes_with_torchvision(processor) else 0.0
    for picture in pictures():
        expected = np.asarray(processor(picture, return_tensors="np")["pixel_values"][0])
        ours = model_input(picture, how)
        np.testing.assert_allclose(
            ours, expected, rtol=1e-5, atol=2e-5 + levels / 255 / min(how.std),
            err_msg=str(picture.size),
        )  # fmt: skip


def name_of_config(value) -> str | None:
    return json.dumps(value).replace('"', "") if isinstance(value, dict) else None


@pytest.mark.parametrize("kind", KINDS)
def test_every_processor_is_followed_or_refused_by_name(folder, photos, kind):
    processor = real(kind, {})
    # a tiny input if that is a setting, so that the test is quick
    sides = {} if processor is None else processor.to_dict().get("size") or {}
    small = {}
    if set(sides) in ({"height", "width"}, {"shortest_edge"}):
        small = {"size": dict.fromkeys(sides, 40), "crop_size": {"height": 35, "width": 35}}
        processor = real(kind, small)
    model = written(folder, kind, small)
    refused = refusal(model, photos)
    if refused:
        assert kind not in FOLLOWED | FOLLOWED_UNSEEN
        assert f"{kind}ImageProcessor" in refused
        assert re.search("cannot be (followed|built)|fails on|gives inputs|something else", refused)
        assert "--size, --mean, --std" in refused
        return
    if processor is None:  # it cannot be built without torchvision; its steps are known
        assert kind in FOLLOWED_UNSEEN
        sides = {"size": {"height": 40, "width": 40}, "crop_size": {"height": 35, "width": 35}}
        assert_same_as_dinov3(load_model(written(folder, kind, sides)).preprocessing, (40, 40))
        return
    assert_same(load_model(model).preprocessing, processor)


def bilinear(new: int, old: int) -> np.ndarray:
    """Weights ``[new, old]`` of a linear filter over one side; as wide as a new pixel if that is
    the larger one, so that no old pixel is passed over (antialias)."""
    scale = old / new
    centres = (np.arange(new, dtype=np.float64) + 0.5) * scale
    apart = np.abs(centres[:, None] - (np.arange(old) + 0.5)) / max(scale, 1.0)
    weights = np.clip(1 - apart, 0, None)
    return weights / weights.sum(axis=1, keepdims=True)


def dinov3_input(picture: Image.Image, size, *, factor=1 / 255, mean, std) -> np.ndarray:
    """The steps that DINOv3's processor documents, in float64: rescale, resize, normalise."""
    pixels = np.asarray(picture.convert("RGB"), dtype=np.float64).transpose(2, 0, 1) * factor
    down = bilinear(size[0], pixels.shape[1])
    across = bilinear(size[1], pixels.shape[2])
    resized = down @ pixels @ across.T
    return (resized - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def assert_same_as_dinov3(how: Preprocessing, size, *, levels=0.0, **settings) -> None:
    settings = {**IMAGENET, **settings}
    rounding = levels * settings.get("factor", 1 / 255) / np.reshape(settings["std"], (3, 1, 1))
    for picture in pictures():
        expected = dinov3_input(picture, size, **settings)
        ours = model_input(picture, how)
        assert ours.shape == expected.shape
        assert (np.abs(ours - expected) <= 2e-5 + rounding).all(), picture.size


@pytest.mark.parametrize(
    ("config", "size", "settings"),
    [
        ({}, (224, 224), {}),
        ({"size": {"height": 37, "width": 29}}, (37, 29), {}),
        ({"size": 24}, (24, 24), {}),
        ({"size": 24, "rescale_factor": 0.01}, (24, 24), {"factor": 0.01}),
        ({"size": 24, "do_normalize": False}, (24, 24), {"mean": (0, 0, 0), "std": (1, 1, 1)}),
        ({"size": 24, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]}, (24, 24),
         {"mean": (0.1, 0.2, 0.3), "std": (0.9, 0.8, 0.7)}),
    ],
    ids=name_of_config,
)  # fmt: skip
def test_the_settings_of_dinov3_are_followed_as_its_processor_documents_them(
    folder, config, size, settings
):
    how = load_model(written(folder, "DINOv3ViT", config)).preprocessing
    assert_same_as_dinov3(how, size, **settings)


@pytest.mark.parametrize("levels", [0.0, ONE_LEVEL])
@pytest.mark.parametrize(
    "wrong",
    [
        *({"interpolation": name} for name in ("nearest", "bicubic", "box", "hamming", "lanczos")),
        {"squash": False},
        {"bgr": True},
        {"crop": 0.9},
        {"std": (0.229, 0.224, 0.229)},
        {"mean": (0.485, 0.456, 0.43)},
    ],
    ids=name_of_config,
)
def test_another_setting_than_the_processors_would_be_seen(wrong, levels):
    right = Preprocessing(size=(24, 24), squash=True, resize_in_float=levels == 0, **IMAGENET)
    assert_same_as_dinov3(right, (24, 24), levels=levels)
    with pytest.raises(AssertionError):
        assert_same_as_dinov3(replace(right, **wrong), (24, 24), levels=levels)


def test_bytes_that_are_resized_and_rounded_are_not_taken_for_floats(folder):
    how = load_model(written(folder, "DINOv3ViT", {"size": 24})).preprocessing
    with pytest.raises(AssertionError):
        assert_same_as_dinov3(replace(how, resize_in_float=False), (24, 24))
    # without rescaling it resizes bytes as well
    plain = {"size": 24, "do_rescale": False}
    assert not load_model(written(folder, "DINOv3ViT", plain)).preprocessing.resize_in_float


def test_a_processor_that_cannot_be_built_to_compare_with_is_told_of_once(folder, photos):
    model = written(folder, "DINOv3ViT", {"size": 24})
    if real("DINOv3ViT", {}) is not None:  # with torchvision it is compared, and nothing is said
        hs.score(model, photos, scores="entropy", device="cpu")
        return
    said = r"image processor of hf:.* cannot be built here.*install torchvision"
    with pytest.warns(HardsightWarning, match=said) as told:
        hs.score(model, photos, scores="entropy", device="cpu")
    assert len(told) == 1
    stated = {"size": 24, "mean": (0.5,), "std": (0.5,)}
    hs.score(model, photos, scores="entropy", device="cpu", **stated)  # nothing is left to follow


def cases():
    edge, exact = {"shortest_edge": 37}, {"height": 37, "width": 29}
    common = [
        {"resample": 0}, {"resample": 1}, {"resample": 2}, {"resample": 4}, {"resample": 5},
        {"do_rescale": False}, {"rescale_factor": 0.01}, {"do_normalize": False},
        {"do_normalize": False, "do_rescale": False},
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]},
        {"do_convert_rgb": True}, {"do_reduce_labels": True}, {"do_resize": False},
    ]  # fmt: skip
    every = {
        "ViT": [*common, {"size": 31}, {"size": exact}, {"size": edge, "resample": 3},
                {"do_center_crop": True, "crop_size": 24}, {"resample": 3},
                {"size": edge, "do_center_crop": True, "crop_size": {"height": 20, "width": 33}}],
        "CLIP": [*common[:-1], {"size": 36, "crop_size": 31}, {"size": edge, "crop_size": 41},
                 {"do_center_crop": False}, {"size": exact, "crop_size": 30},
                 {"size": exact, "crop_size": {"height": 40, "width": 20}}],
        "ConvNext": [{"size": 32}, {"size": edge, "crop_pct": 0.9}, {"size": 384},
                     {"size": 31, "crop_pct": 0.7, "resample": 2}, {"do_resize": False}],
        "PoolFormer": [{"size": edge, "crop_size": 37}, {"size": edge, "crop_pct": 0.8},
                       {"size": {"height": 32, "width": 32}, "crop_size": 30},
                       {"size": exact, "crop_size": 30}, {"do_center_crop": False, "size": 33}],
        "Levit": [{"size": 32, "crop_size": 32}, {"size": exact, "crop_size": 24}],
        "EfficientNet": [{**one, **more} for one in ({"size": 32}, {"size": exact},
                                                     {"do_center_crop": True, "size": 37,
                                                      "crop_size": 30})
                         for more in ({}, {"include_top": False}, {"rescale_offset": True},
                                      {"rescale_offset": True, "rescale_factor": 1 / 127.5},
                                      {"do_normalize": False}, {"do_rescale": False},
                                      {"image_std": [0.2, 0.3, 0.4]})],
        "MobileViT": [{"size": 30, "crop_size": 40}, {"size": 33, "crop_size": 26},
                      {"size": 30, "crop_size": 30, "do_flip_channel_order": False},
                      {"size": 30, "crop_size": 30, "do_normalize": True},
                      {"size": 31, "do_center_crop": False}],
        "Perceiver": [{"size": 28, "crop_size": 32}, {"size": 28, "crop_size": 28},
                      {"do_center_crop": False, "size": 28}, {"size": 30, "crop_size": 41}],
        "Segformer": [{"size": 33}, {"do_reduce_labels": True, "size": 24}],
        "Beit": [{"size": 33, "do_center_crop": True, "crop_size": 24}],
        "DeiT": [{"size": 33, "crop_size": 24}, {"size": exact, "crop_size": 24}],
        "MobileNetV2": [{"size": 33, "crop_size": 24}, {"size": 24, "crop_size": 33}],
    }  # fmt: skip
    for kind, configs in every.items():
        for config in configs:
            sizes = {} if "size" in config else {"size": 37}
            crops = {} if "crop_size" in config else {"crop_size": 30}
            yield kind, {**sizes, **crops, **config}


def name_of(value) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


@pytest.mark.parametrize(("kind", "config"), list(cases()), ids=name_of)
def test_every_setting_of_a_classifiers_processor_is_followed(folder, kind, config):
    how = load_model(written(folder, kind, config)).preprocessing
    assert_same(how, real(kind, config))


@pytest.mark.parametrize(
    ("kind", "config", "named"),
    [
        ("CLIP", {"do_pad": True}, "do_pad=True"),
        ("ViT", {"size": {"shortest_edge": 32, "longest_edge": 64}}, "longest_edge"),
        ("ViT", {"size": {"max_height": 32, "max_width": 64}}, "max_height"),
        ("ViT", {"data_format": "channels_last"}, "data_format"),
        ("TextNet", {}, "size_divisor=32"),
        ("ConvNext", {"size": 32, "do_center_crop": True, "crop_size": 24}, "do_center_crop=True"),
        ("CLIP", {"do_resize": False}, "do_center_crop=True with do_resize=False"),
        ("ConvNext", {"size": 32, "crop_pct": None}, "crop_pct=None with a shortest edge below"),
        ("Perceiver", {"size": {"height": 28, "width": 20}, "crop_size": 32}, "crop_size"),
        ("ViT", {"resample": 9}, "resample=9"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(folder, kind, config, named):
    with pytest.raises(ModelError, match=f"settings that cannot be followed.*{named}"):
        load_model(written(folder, kind, config))


def test_a_processor_that_is_refused_can_be_replaced_by_the_user(folder, photos):
    config = {"image_processor_type": "TextNetImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    how = Preprocessing(size=(32, 32), mean=(0.5,), std=(0.5,), channels=3)
    table = hs.score(f"hf:{folder}", photos, scores="entropy", preprocessing=how)
    assert table.metadata["preprocessing"]["size"] == [32, 32]
    table = hs.score(
        f"hf:{folder}", photos, scores="entropy", size=(24, 24), mean=(0.5,), std=(0.5,)
    )
    assert table.metadata["preprocessing"]["size"] == [24, 24]
    assert "size, mean, std as given" in table.metadata["preprocessing"]["origin"]


def test_a_processor_by_its_old_name_or_by_none_is_found(folder, photos):
    for named in ({"feature_extractor_type": "ViTFeatureExtractor"},
                  {"image_processor_type": "ViTImageProcessorFast"}):  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": 30, **named}))
        assert_same(load_model(f"hf:{folder}").preprocessing, real("ViT", {"size": 30}))
    # the kind of the model decides, as in transformers: a ResNet has that of ConvNeXt
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 30}))
    assert_same(load_model(f"hf:{folder}").preprocessing, real("ConvNext", {"size": 30}))


def test_a_damaged_processor_file_is_refused(folder):
    (folder / "preprocessor_config.json").write_text('{"size": ')
    with pytest.raises(ModelError, match=r"image processor of hf:.* cannot be read"):
        load_model(f"hf:{folder}")


def test_a_processor_of_unknown_class_is_refused(folder):
    config = {"image_processor_type": "HomemadeImageProcessor", "size": 32}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="HomemadeImageProcessor, which cannot be built here"):
        load_model(f"hf:{folder}")


def test_without_a_processor_nothing_is_assumed(folder):
    (folder / "preprocessor_config.json").unlink(missing_ok=True)
    assert load_model(f"hf:{folder}").preprocessing is None
