"""Nothing heavy loads until it is used; the public names are there when asked for."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hardsight

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "lightning", "ray", "nicegui", "triton")
LIGHT = [
    "hardsight",
    "hardsight.run_folder",
    "hardsight.suspects",
    *(
        f"hardsight.{part}"
        for part in (
            "cli",
            "table",
            "report",
            "stats",
            "gallery",
            "registry",
            "config",
            "review",
            "patch",
            "exchange",
        )
    ),
]


def heavy_modules_after(statement):
    """Heavy packages a fresh interpreter has loaded after ``statement``."""
    code = (
        f"{statement}\nimport json, sys\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize("module", [name for name in LIGHT if find_spec(name)])
def test_a_light_module_loads_nothing_heavy(module):
    assert heavy_modules_after(f"import {module}") == []


def test_the_probe_sees_torch_when_it_is_loaded():
    assert "torch" in heavy_modules_after("import hardsight\nhardsight.scores")


def test_listing_the_commands_loads_nothing_heavy():
    statement = (
        "from click.testing import CliRunner\nfrom hardsight.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0"
    )
    assert heavy_modules_after(statement) == []


# the names of the design; those of a part that is not there yet wait for it
PUBLIC = {
    "": "score find_head read_table review read_patch apply_patch",
    "errors": "HardsightError",
    "scores": "angular_visual_hardness angular_visual_confidence target_angle angular_margin "
    "feature_norm model_confidence logit_margin el2n conditional_energy entropy min_energy "
    "free_energy",
    "losses": "avh_loss AVHLoss amc_loss AMCLoss euclidean_contrastive_loss "
    "EuclideanContrastiveLoss encouraging_loss EncouragingLoss mirror_mse_loss MirrorMSELoss "
    "hardest",
    "stats": "correlation compare_correlations",
    "selftrain": "class_thresholds pseudo_labels",
    "tracking": "HardnessTracker",
}
PRESENT = [
    (part, name)
    for part, names in PUBLIC.items()
    if not part or find_spec(f"hardsight.{part}")
    for name in names.split()
]


@pytest.mark.parametrize(("part", "name"), PRESENT)
def test_a_public_name_resolves_from_the_root(part, name):
    home = getattr(hardsight, part) if part else hardsight
    assert callable(getattr(home, name))


def test_the_root_lists_what_it_offers():
    assert set(dir(hardsight)) == set(hardsight.__all__)
    for name in hardsight.__all__:
        assert getattr(hardsight, name) is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", hardsight.__version__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hardsight' has no attribute 'skore'"):
        hardsight.skore  # noqa: B018


def test_the_package_is_marked_as_typed():
    assert (ROOT / "hardsight" / "py.typed").exists()
