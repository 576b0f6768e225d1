"""The explanations of a card: Grad-CAM measures of many images, and pictures of a few."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hardsight.data import ExampleSource
from hardsight.errors import ModelError
from hardsight.evaluate import (
    CamLayer,
    deletion_insertion,
    find_cam_layer,
    grad_cam,
    map_entropy,
    top_area_share,
)
from hardsight.run.evaluate._pass import inputs_at
from hardsight.run.evaluate._subjects import Subject

_SIDE = 96  # pixels of a picture on the card


def explanation_part(
    subject: Subject,
    source: ExampleSource,
    positions: NDArray[np.int64],
    pictured: NDArray[np.int64],
    *,
    layer: str | None,
    at_once: int,
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Measures of the maps of ``positions``, and pictures of those that are in ``pictured``.

    Maps are kept for one batch only, so memory does not grow with the number of images. An image
    without finite logits has no class to explain and is left out.

    Raises:
        ModelError: the user named a layer that is not laid out like the image.
    """
    cam_layer: CamLayer | None = None
    measures: dict[str, list[Tensor]] = {}
    pictures: dict[int, dict[str, Any]] = {}
    for read, loaded in inputs_at(subject, source, positions, at_once=at_once):
        with torch.no_grad():
            logits = subject.logits(loaded)
        usable = torch.isfinite(logits).all(dim=1)
        here, inputs = read[usable.cpu().numpy()], loaded[usable]
        if not len(here):
            continue
        if cam_layer is None:
            try:
                cam_layer = find_cam_layer(subject.model, inputs[:2], name=layer)
            except ModelError as err:
                if layer is not None:
                    raise
                return {"note": str(err)}, {}
        classes = logits[usable].argmax(dim=1)
        # a gradient with NaN is no evidence for the class: an empty map
        maps = grad_cam(subject.model, inputs, classes, layer=cam_layer).nan_to_num(0)
        deletion, insertion = deletion_insertion(subject.logits, inputs, maps, classes)
        values = {"top_share": top_area_share(maps), "entropy": map_entropy(maps),
                  "deletion": deletion, "insertion": insertion}  # fmt: skip
        for name, value in values.items():
            measures.setdefault(name, []).append(value.cpu())
        for row in np.flatnonzero(np.isin(here, pictured)).tolist():
            pictures[int(here[row])] = {
                "prediction": int(classes[row]),
                "image": _encoded(_pixels(inputs[row], subject)),
                "map": map_picture(inputs[row], maps[row], subject),
            }
    if cam_layer is None:
        return {"note": "none of the chosen images can be read and has a finite output"}, {}
    part: dict[str, Any] = {name: _mean(parts) for name, parts in measures.items()}
    part["layer"], part["grid"] = cam_layer.name, list(cam_layer.grid)
    part["n"] = sum(len(batch) for batch in measures["deletion"])
    part["empty"] = int(torch.cat(measures["entropy"]).isnan().sum())
    return part, pictures


def map_picture(image: Tensor, map_: Tensor, subject: Subject, *, side: int = _SIDE) -> str:
    """A map over the input that it explains, as base64 of a PNG of at most ``side`` pixels."""
    return _encoded(_overlay(_pixels(image, subject), map_), side)


def _mean(parts: list[Tensor]) -> float | None:
    values = torch.cat(parts).double()
    kept = values[~values.isnan()]
    return float(kept.mean()) if len(kept) else None


def _pixels(image: Tensor, subject: Subject) -> NDArray[np.float64]:
    """An input as pixels ``[H, W, 3]`` in [0, 1]; stretched if the normalisation is unknown."""
    planes = image.detach().cpu().double().numpy()
    if subject.states_normalisation:
        mean, std = (
            np.resize(np.array(values), len(planes))[:, None, None]
            for values in (subject.preprocessing.mean, subject.preprocessing.std)
        )
        planes = planes * std + mean
    else:
        low, high = planes.min(), planes.max()
        planes = (planes - low) / (high - low if high > low else 1)
    planes = planes[::-1] if subject.preprocessing.bgr else planes
    planes = planes[:3] if len(planes) >= 3 else planes[:1].repeat(3, axis=0)
    pixels: NDArray[np.float64] = np.clip(planes.transpose(1, 2, 0), 0, 1)
    return pixels


def _overlay(pixels: NDArray[np.float64], map_: Tensor) -> NDArray[np.float64]:
    """The map in warm colours over the grey image."""
    strength = map_.cpu().double().numpy()[:, :, None]
    grey = pixels.mean(axis=2, keepdims=True).repeat(3, axis=2)
    ramp = np.concatenate([np.ones_like(strength), 0.85 * strength, 0.1 * strength], axis=2)
    blended: NDArray[np.float64] = grey * (1 - 0.75 * strength) + ramp * 0.75 * strength
    return blended


def _encoded(pixels: NDArray[np.float64], side: int = _SIDE) -> str:
    """A picture as base64 of a PNG, tiny ones enlarged without smoothing."""
    image = Image.fromarray((255 * np.clip(pixels, 0, 1)).round().astype(np.uint8))
    scale = side / max(image.size)
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    sink = io.BytesIO()
    image.resize(size, how).save(sink, "PNG", optimize=True)
    return base64.b64encode(sink.getvalue()).decode()
