"""Parse the values of flags, and say what flags of a certain name may hold."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import click


def pair(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Read ``224`` or ``224x160`` as height and width."""
    if value is None:
        return None
    parts = value.lower().split("x")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise click.BadParameter(f"expected 224 or 224x160 (height x width), got {value!r}")
    return int(parts[0]), int(parts[-1])


def least_and_most(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Read ``4`` or ``2-8`` as the smallest and the largest number."""
    if value is None:
        return None
    parts = value.split("-")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise click.BadParameter(f"expected 4 or 2-8 (smallest and largest), got {value!r}")
    return int(parts[0]), int(parts[-1])


def _numbers(read: Callable[[str], float | Fraction], such_as: str) -> Callable[..., Any]:
    """A callback for comma-separated numbers, each parsed by ``read``."""

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
    """Read the text of a choice such as ``3`` as a whole number."""
    return None if value is None else int(value)


def names(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Read names that are repeated, separated by commas, or both."""
    if any(not part.strip(", ") for part in value):
        raise click.BadParameter("expected a name, got an empty one; leave the flag out for none")
    return tuple(name for part in value for name in part.split(",") if name) or None


def key_or_position(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> int | str | None:
    """Read a whole number as a position, and anything else as a name."""
    if value is None:
        return None
    return int(value) if value.removeprefix("-").isdigit() else value


def _least(count: int) -> dict[str, Any]:
    return {"type": click.IntRange(min=count)}


_INSIDE: dict[str, Any] = {"type": click.FloatRange(0, 1, min_open=True, max_open=True)}
# what the type of a setting does not say about its flag, by the name of the setting; a name means
# the same in every command
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
