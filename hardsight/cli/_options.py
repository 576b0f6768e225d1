"""What the values of flags may look like."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import click


def pair(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """``224`` or ``224x160`` as height and width."""
    if value is None:
        return None
    parts = value.lower().split("x")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise click.BadParameter(f"expected 224 or 224x160 (height x width), got {value!r}")
    return int(parts[0]), int(parts[-1])


def least_and_most(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """``4`` or ``2-8`` as a range."""
    if value is None:
        return None
    parts = value.split("-")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise click.BadParameter(f"expected 4 or 2-8 (least and most), got {value!r}")
    return int(parts[0]), int(parts[-1])


def _numbers(read: Callable[[str], float | Fraction], such_as: str) -> Callable[..., Any]:
    """Numbers with commas between them, each read by ``read``."""

    def parsed(
        ctx: click.Context, param: click.Parameter, value: str | None
    ) -> tuple[float, ...] | None:
        if value is None:
            return None
        try:
            return tuple(float(read(part.strip())) for part in value.split(","))
        except (ValueError, ZeroDivisionError, OverflowError):
            raise click.BadParameter(f"expected numbers such as {such_as}, got {value!r}") from None

    return parsed


floats = _numbers(float, "0.5,0.5,0.5")
radii = _numbers(Fraction, "0,1/255,0.03")


def whole(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A choice of numbers as one."""
    return None if value is None else int(value)


def names(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Repeated or comma-separated names."""
    if any(not part.strip(", ") for part in value):
        raise click.BadParameter("expected a name, got an empty one; leave the flag out for none")
    return tuple(name for part in value for name in part.split(",") if name) or None


def key_or_position(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> int | str | None:
    """``1`` as a position, anything else as a name."""
    if value is None:
        return None
    return int(value) if value.removeprefix("-").isdigit() else value


def _least(count: int) -> dict[str, Any]:
    return {"type": click.IntRange(min=count)}


_INSIDE: dict[str, Any] = {"type": click.FloatRange(0, 1, min_open=True, max_open=True)}
# what a type does not say about a flag, by the name of its setting, which means the same everywhere
LOOKS: dict[str, dict[str, Any]] = {
    "precision": {"type": click.Choice(["auto", "float32", "bfloat16", "float16"])},
    "sample": {"type": click.Choice(["in-sample", "out-of-sample", "unknown"])},
    "class_order": {"type": click.Choice(["auto", "name", "position"])},
    "channels": {"type": click.Choice(["1", "3"]), "callback": whole},
    "engine": {"type": click.Choice(["local", "ray"])},
    "ray_address": {"metavar": "ADDRESS"},
    "ray_actors": {"callback": least_and_most, "metavar": "N[-N]"},
    "model_classes": {"metavar": "NAME[,NAME]|FILE"},
    "patch": {"metavar": "FILE[,FILE]"},
    "output": {"callback": key_or_position, "metavar": "NAME|POSITION"},
    "mean": {"metavar": "M[,M,M]"},
    "std": {"metavar": "S[,S,S]"},
    "crop": {"metavar": "SHARE"},
    "white": {"metavar": "W"},
    "noise": {"metavar": "W,W,..."},
    "contrast": {"metavar": "C,C,..."},
    "epsilons": {"callback": radii, "metavar": "E,E,..."},
    "epsilons_l2": {"callback": radii, "metavar": "E,E,..."},
    "validation_share": _INSIDE,
    "wanted_error": _INSIDE,
    "alpha": _INSIDE,
    **dict.fromkeys(("limit", "folds", "out_of_sample"), _least(2)),
    "feature_examples": _least(10),
    "map_examples": _least(10),
    **dict.fromkeys(
        ("batch_size", "shard_rows", "epochs", "rounds", "attack_steps", "quantiles"), _least(1)
    ),
    **dict.fromkeys(("workers", "thumbnails", "attack_examples", "explain_examples"), _least(0)),
}
