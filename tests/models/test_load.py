import os
import pickle
import sys
import textwrap

import pytest
import torch
from torch import nn

from hardsight.errors import MissingDataError, MissingExtraError, ModelError
from hardsight.models import load_model
from hardsight.preprocessing import Preprocessing

MODELS = """
    import torch
    from dataclasses import dataclass
    from torch import nn
    import sibling
    from sibling_package.deep import WIDTH

    @dataclass
    class Options:
        width: int = WIDTH

    class Net(nn.Module):
        def __init__(self, num_classes=7):
            super().__init__()
            self.fc = nn.Linear(Options().width, num_classes)

        @classmethod
        def wide(cls):
            return cls(num_classes=99)

    def net(num_classes=5):
        import lazy_sibling
        return Net(num_classes + lazy_sibling.MORE)

    def any_options(**options):
        return Net(**options)

    def fixed():
        return Net(4)

    def broken():
        raise RuntimeError("no such layer")

    def number():
        return 3

    ready = Net(6)
    NOT_CALLABLE = 3
"""


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "with space"
    (folder / "sibling_package").mkdir(parents=True)
    (folder / "sibling.py").write_text("NAME = 'first'")
    (folder / "lazy_sibling.py").write_text("MORE = 0")
    (folder / "sibling_package" / "__init__.py").write_text("")
    (folder / "sibling_package" / "deep.py").write_text("WIDTH = 8")
    (folder / "models.py").write_text(textwrap.dedent(MODELS))
    return folder / "models.py"


@pytest.mark.parametrize(
    ("factory", "num_classes", "outputs"),
    [
        ("Net", None, 7),
        ("Net", 3, 3),
        ("net", None, 5),
        ("net", 3, 3),
        ("any_options", 3, 3),
        ("fixed", 3, 4),
        ("Net.wide", None, 99),
        ("ready", None, 6),
    ],
)
def test_a_factory_in_a_file_gets_num_classes_if_it_takes_it(file, factory, num_classes, outputs):
    loaded = load_model(f"{file}:{factory}", num_classes=num_classes)
    assert loaded.model.fc.out_features == outputs
    assert not loaded.model.training
    assert loaded.spec == f"{file}:{factory}"
    assert (loaded.preprocessing, loaded.weights_digest) == (None, None)


def test_importing_a_file_leaves_no_trace_on_the_path(file):
    path, modules = list(sys.path), set(sys.modules)
    model = load_model(f"{file}:net").model
    assert sys.path == path
    assert not {"sibling", "lazy_sibling", "sibling_package"} & (set(sys.modules) - modules)
    assert type(pickle.loads(pickle.dumps(model))) is type(model)


def test_a_file_that_fails_leaves_no_trace_either(file):
    path, modules = list(sys.path), set(sys.modules)
    file.write_text("import sibling\n1 / 0")
    with pytest.raises(ModelError, match=r"cannot import .*models\.py: ZeroDivisionError"):
        load_model(f"{file}:net")
    assert sys.path == path
    assert set(sys.modules) == modules


def test_two_files_of_the_same_name_do_not_meet(file, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sibling.py").write_text("OUTPUTS = 2")
    (other / "models.py").write_text(
        "import sibling\nfrom torch import nn\ndef net():\n    return nn.Linear(1, sibling.OUTPUTS)"
    )
    first = load_model(f"{file}:fixed").model
    assert load_model(f"{other / 'models.py'}:net").model.out_features == 2
    assert type(load_model(f"{file}:fixed").model).__name__ == type(first).__name__


def test_a_factory_of_a_package_is_imported_also_from_the_working_directory(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    path = list(sys.path)
    (file.parent / "hardsight_test_package").mkdir()
    package = file.parent / "hardsight_test_package" / "nets.py"
    package.write_text("from torch import nn\ndef net():\n    return nn.Linear(2, 3)")
    assert load_model("hardsight_test_package.nets:net").model.out_features == 3
    assert sys.path == path
    assert load_model("hardsight.models:SmallCNN", num_classes=4).model.head.out_features == 4


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nett", r"unknown factory in .*models\.py 'nett'\. Did you mean 'net'\? Known: .*fixed"),
        ("broken", r"models\.py:broken failed with RuntimeError: no such layer"),
        ("number", r"expected .*models\.py:number to return an nn\.Module, got int"),
        ("NOT_CALLABLE", r"to be a function or class that makes a model, got int"),
    ],
)
def test_a_factory_that_makes_no_model_is_a_clear_error(file, factory, message):
    with pytest.raises(ModelError, match=message):
        load_model(f"{file}:{factory}")


LEAVING = {"0": "SystemExit: 0", "3": "SystemExit: 3", "'bye'": "SystemExit: bye", "": "SystemExit"}


@pytest.mark.parametrize("code", LEAVING)
def test_a_file_that_ends_the_program_on_import_is_an_error(file, code):
    file.write_text(f"import sys\nsys.exit({code})")
    with pytest.raises(ModelError, match=rf"cannot import .*models\.py: {LEAVING[code]}"):
        load_model(f"{file}:net")


@pytest.mark.parametrize("code", LEAVING)
def test_a_factory_that_ends_the_program_is_an_error(file, code):
    file.write_text(f"def net():\n    raise SystemExit({code})")
    with pytest.raises(ModelError, match=rf"models\.py:net failed with {LEAVING[code]}"):
        load_model(f"{file}:net")


def test_a_package_that_ends_the_program_on_import_is_an_error(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    (file.parent / "hardsight_test_leaving.py").write_text("raise SystemExit(0)")
    with pytest.raises(ModelError, match="cannot import hardsight_test_leaving: SystemExit: 0"):
        load_model("hardsight_test_leaving:net")


def test_a_missing_python_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"no Python file at .*nothing\.py"):
        load_model(f"{tmp_path / 'nothing.py'}:net")


def test_a_package_that_cannot_be_imported_is_named_with_the_cause():
    with pytest.raises(ModelError, match=r"cannot import no_such_package\.nets: ModuleNotFound"):
        load_model("no_such_package.nets:net")


@pytest.mark.parametrize("spec", ["resnet52", "", "package.module:", ":factory", "file.py"])
def test_an_unknown_form_is_answered_with_the_known_ones(spec):
    with pytest.raises(
        ModelError, match=r"cannot tell what model .*file\.py:factory, timm:NAME, torchvision:NAME"
    ):
        load_model(spec)


def test_a_module_is_taken_as_it_is():
    module = nn.Linear(2, 3).train()
    loaded = load_model(module)
    assert loaded.model is module
    assert (loaded.spec, loaded.weights_origin, module.training) == ("Linear", "as passed", False)


def test_a_module_may_state_its_own_preprocessing():
    module = nn.Linear(2, 3)
    module.preprocessing = Preprocessing(size=(8, 8), channels=1)
    assert load_model(module).preprocessing is module.preprocessing


@pytest.mark.parametrize("package", ["timm", "torchvision", "transformers"])
def test_a_package_that_is_not_installed_is_missed_with_a_next_step(monkeypatch, package):
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in [package, *loaded]:  # an import of a module that is loaded asks nobody
        monkeypatch.setitem(sys.modules, name, None)
    kind = "hf" if package == "transformers" else package
    with pytest.raises(MissingExtraError, match=rf"model {kind}:some needs .*hardsight\[models\]"):
        load_model(f"{kind}:some")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    ResNetForImageClassification(config).save_pretrained(folder)
    return folder


def test_a_local_hugging_face_folder_is_loaded_with_its_digest(folder):
    loaded = load_model(f"hf:{folder}", num_classes=5)
    assert type(loaded.model).__name__ == "ResNetForImageClassification"
    assert loaded.model.config.num_labels == 5
    assert loaded.preprocessing is None
    assert len(loaded.weights_digest) == 64


def test_the_image_processor_beside_a_hugging_face_model_is_read(folder, tmp_path):
    import json
    import shutil

    copy = shutil.copytree(folder, tmp_path / "with-processor")
    processor = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224},
                 "crop_pct": 0.875, "resample": 3, "image_mean": [0.1, 0.2, 0.3],
                 "image_std": [0.4, 0.5, 0.6], "do_resize": True}  # fmt: skip
    (copy / "preprocessor_config.json").write_text(json.dumps(processor))
    found = load_model(f"hf:{copy}").preprocessing
    assert found.size == (224, 224)
    assert found.mean == pytest.approx((0.1, 0.2, 0.3))
    assert (found.crop, found.interpolation, found.channels) == (0.875, "bicubic", 3)
    assert found.origin == f"image processor of hf:{copy}"


def test_another_number_of_classes_than_the_hugging_face_model_has_is_refused(folder):
    with pytest.raises(ModelError, match="has 5 classes, got num_classes=7"):
        load_model(f"hf:{folder}", num_classes=7)


def test_options_of_a_hugging_face_model_are_refused(folder):
    with pytest.raises(ModelError, match="takes no options, got depth"):
        load_model(f"hf:{folder}", options={"depth": 3})


def test_a_hugging_face_folder_without_a_model_is_a_clear_error(tmp_path):
    with pytest.raises(ModelError, match=r"cannot build hf:.*check the name"):
        load_model(f"hf:{tmp_path}")
    with pytest.raises(ModelError, match=r"no folder \./nowhere for hf:\./nowhere"):
        load_model("hf:./nowhere")


def test_weights_may_be_loaded_into_a_hugging_face_model(folder, tmp_path):
    state = load_model(f"hf:{folder}").model.state_dict()
    changed = {name: torch.ones_like(value) for name, value in state.items()}
    torch.save(changed, tmp_path / "ones.pt")
    loaded = load_model(f"hf:{folder}", weights=tmp_path / "ones.pt")
    assert loaded.weights_origin == "file ones.pt"
    torch.testing.assert_close(dict(loaded.model.state_dict()), changed)


def test_a_file_is_read_as_it_is_now_even_within_the_second_it_was_read_before(tmp_path):
    file = tmp_path / "net.py"
    source = "from torch import nn\n\n\ndef make(num_classes=2):\n    return nn.Sequential({})\n"
    for layer in ("ReLU", "Tanh"):  # names of one length
        file.write_text(source.format(f"nn.{layer}(), nn.Linear(3, num_classes)"))
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert type(load_model(f"{file}:make").model[0]).__name__ == layer
    assert list(tmp_path.iterdir()) == [file]  # nothing is left beside a user's code
