import hashlib
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hardsight.errors import MissingDataError, ModelError, UnsafeFileError
from hardsight.models import load_model


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return network().state_dict()


def assert_loaded(model: nn.Module) -> None:
    torch.testing.assert_close(dict(model.state_dict()), dict(trained()))


def test_safetensors_are_loaded_with_the_digest_of_the_file(tmp_path):
    file = tmp_path / "weights.safetensors"
    save_file(trained(), file)
    loaded = load_model(network(), weights=file)
    assert_loaded(loaded.model)
    assert loaded.weights_digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert loaded.weights_origin == "file weights.safetensors"


@pytest.mark.parametrize("legacy", [False, True])
def test_torch_files_are_loaded_in_both_formats(tmp_path, legacy):
    file = tmp_path / "weights.pth"
    torch.save(trained(), file, _use_new_zipfile_serialization=not legacy)
    assert_loaded(load_model(network(), weights=str(file)).model)


@pytest.mark.parametrize(
    "nest",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"lr": 0.1}},
        lambda state: {"model_state_dict": state},
        lambda state: {"model": {"state_dict": state}},
    ],
    ids=["state_dict", "model", "model_state_dict", "twice"],
)
def test_a_nested_state_dict_is_found(tmp_path, nest):
    file = tmp_path / "checkpoint.pt"
    torch.save(nest(trained()), file)
    assert_loaded(load_model(network(), weights=file).model)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "model._orig_mod.module."])
def test_prefixes_of_wrappers_are_stripped(tmp_path, prefix):
    file = tmp_path / "wrapped.pt"
    torch.save({prefix + name: value for name, value in trained().items()}, file)
    assert_loaded(load_model(network(), weights=file).model)


@pytest.mark.parametrize("wrapper", ["", "model.", "module."])
def test_a_prefix_that_is_part_of_the_model_is_kept(tmp_path, wrapper):
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

    holder, file = Holder(), tmp_path / "holder.pt"
    torch.save({f"{wrapper}model.{name}": value for name, value in trained().items()}, file)
    assert_loaded(load_model(holder, weights=file).model.model)


def test_weights_saved_before_batch_norm_counted_its_batches_still_fit(tmp_path):
    file = tmp_path / "old.pt"
    state = {n: v for n, v in trained().items() if not n.endswith("num_batches_tracked")}
    torch.save(state, file)
    assert_loaded(load_model(network(), weights=file).model)


def test_weights_of_another_model_name_some_keys_and_change_nothing(tmp_path):
    file, model = tmp_path / "other.pt", network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = {f"layer{number}.weight": torch.ones(2) for number in range(5)}
    torch.save({**other, "0.weight": trained()["0.weight"]}, file)
    with pytest.raises(
        ModelError,
        match=r"does not fit Sequential: missing 0\.bias, 1\.weight, 1\.bias and 4 more; "
        r"unexpected layer0\.weight, layer1\.weight, layer2\.weight and 2 more; check",
    ):
        load_model(model, weights=file)
    torch.testing.assert_close(dict(model.state_dict()), before)


def test_another_number_of_classes_is_named_with_both_shapes(tmp_path):
    file = tmp_path / "wide.pt"
    torch.save({**trained(), "2.weight": torch.ones(5, 8), "2.bias": torch.ones(5)}, file)
    with pytest.raises(
        ModelError, match=r"2\.weight \[5, 8\] instead of \[3, 8\].*such as num_classes"
    ):
        load_model(network(), weights=file)


class RunsCode:
    """Unpickling this creates the file it names."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["torch", "legacy torch", "pickle"])
def test_a_pickle_with_code_is_refused_and_its_code_never_runs(tmp_path, how):
    file, proof = tmp_path / "evil.pt", tmp_path / "code-ran"
    content = {"state_dict": trained(), "extra": RunsCode(proof)}
    if how == "pickle":
        file.write_bytes(pickle.dumps({"extra": RunsCode(proof)}))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(
        UnsafeFileError, match=r"would have to run code.*torch\.save\(model\.state_dict"
    ) as caught:
        load_model(network(), weights=file)
    assert not proof.exists()
    assert how == "pickle" or "asks for posix.mkdir" in str(caught.value)
    # the probe can fail: an unpickler that trusts the file does run the code
    torch.save(content, file)
    torch.load(file, weights_only=False)
    assert proof.exists()


def test_a_pickled_module_is_refused(tmp_path):
    file = tmp_path / "whole.pt"
    torch.save(network(), file)
    with pytest.raises(UnsafeFileError, match=r"asks for torch\.nn\.\S+\.Sequential"):
        load_model(network(), weights=file)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_torchscript_archive_is_refused(tmp_path):
    file = tmp_path / "script.pt"
    torch.jit.script(nn.Linear(4, 3)).save(file)
    with pytest.raises(UnsafeFileError, match="TorchScript archive, a program rather than weights"):
        load_model(nn.Linear(4, 3), weights=file)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.pt", b"hello, these are no weights"),
        ("empty.pth", b""),
        ("page.pth", b"<html>not found</html>"),
        ("cut.pt", None),
        ("text.safetensors", b"hello, these are no weights"),
        ("empty.safetensors", b""),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name, content):
    file = tmp_path / name
    if content is None:
        torch.save(trained(), file)
        content = file.read_bytes()[:-200]
    file.write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name} is not a readable (torch|safetensors) file"):
        load_model(network(), weights=file)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3, "lr": 0.1}, {}])
def test_a_file_without_a_state_dict_says_what_it_holds(tmp_path, content):
    file = tmp_path / "other.pt"
    torch.save(content, file)
    with pytest.raises(ModelError, match=rf"no state dict: got {type(content).__name__}"):
        load_model(network(), weights=file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"no weights file at .*none\.pt"):
        load_model(network(), weights=tmp_path / "none.pt")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_of_another_user_that_may_not_be_read_are_named(tmp_path, monkeypatch, suffix):
    file = tmp_path / f"w.{suffix}"
    save_file({"weight": torch.zeros(2, 3)}, file)
    # as for a user without the right; the tests may run as root, who may read everything
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ModelError, match=rf"cannot read the weights .*w\.{suffix}: Permission"):
        load_model(nn.Linear(3, 2), weights=file)
