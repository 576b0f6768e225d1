"""A Hugging Face folder may bring Python files; they run only if the user says so."""

import json
import textwrap

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import ModelError
from hardsight.models import load_model

CODE = """
    from pathlib import Path

    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import ImageClassifierOutput

    Path({mark!r}).touch()

    class OwnConfig(PretrainedConfig):
        model_type = {kind!r}

    class OwnNet(PreTrainedModel):
        config_class = OwnConfig

        def __init__(self, config):
            super().__init__(config)
            self.head = nn.Linear(4, config.num_labels)
            self.post_init()

        def forward(self, pixel_values):
            return ImageClassifierOutput(logits=self.head(pixel_values.mean((1, 2))))
"""


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "the code ran"


@pytest.fixture
def folder(tmp_path, mark, monkeypatch, request):
    """A model whose class is in the folder; ``request.param`` is its model_type."""
    kind = getattr(request, "param", "own-kind")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    folder = tmp_path / "model"
    folder.mkdir()
    code = textwrap.dedent(CODE.format(mark=str(mark), kind=kind))
    (folder / "own.py").write_text(code)
    config = {
        "model_type": kind,
        "num_labels": 3,
        "auto_map": {
            "AutoConfig": "own.OwnConfig",
            "AutoModelForImageClassification": "own.OwnNet",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(
        {f"head.{name}": value for name, value in nn.Linear(4, 3).state_dict().items()},
        folder / "pytorch_model.bin",
    )
    return folder


@pytest.fixture
def yes(monkeypatch):
    """Somebody at the terminal who answers every question with yes; the questions."""
    asked = []

    def answer(question=""):
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return asked


# transformers has a class of its own for "resnet" and would build that instead
@pytest.mark.parametrize("folder", ["own-kind", "resnet"], indirect=True)
def test_code_in_a_folder_is_refused_without_a_question(folder, mark, yes):
    with pytest.raises(
        ModelError, match=r"brings Python code .*own\.OwnNet.* trust_remote_code=True .*--trust-rem"
    ):
        load_model(f"hf:{folder}")
    assert not yes
    assert not mark.exists()


def test_code_in_a_folder_runs_where_the_user_trusts_it(folder, mark):
    loaded = load_model(f"hf:{folder}", trust_remote_code=True)
    assert mark.exists()
    assert loaded.model(torch.zeros(2, 4, 4, 4)).logits.shape == (2, 3)


@pytest.mark.parametrize("words", [("score", "--model"), ("evaluate",)])
def test_commands_refuse_code_and_name_the_option(folder, mark, yes, tmp_path, words):
    data = ("--data", "builtin:digits", "--out", str(tmp_path / "run"))
    result = CliRunner().invoke(main, [*words, f"hf:{folder}", *data])
    assert result.exit_code == 1, result.output
    assert "--trust-remote-code" in result.output
    assert not yes
    assert not mark.exists()


def test_training_and_adapting_refuse_code_too(folder, mark, yes, tmp_path):
    digits = {"name": "builtin:digits", "split": "train"}
    with pytest.raises(ModelError, match="brings Python code"):
        hs.train(f"hf:{folder}", digits, out=tmp_path / "run", epochs=1, device="cpu")
    with pytest.raises(ModelError, match="brings Python code"):
        hs.adapt(f"hf:{folder}", digits, digits, out=tmp_path / "run", device="cpu")
    assert not yes
    assert not mark.exists()


def test_an_image_processor_of_the_folder_is_refused_too(folder, mark, yes):
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "resnet"}))
    processor = {"auto_map": {"AutoImageProcessor": "own.Own"}, "image_processor_type": "Own"}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.raises(ModelError, match=r"brings Python code .*own\.Own"):
        load_model(f"hf:{folder}")
    assert not yes
    assert not mark.exists()


@pytest.mark.parametrize("command", ["score", "evaluate", "study degradation", "adapt"])
def test_help_says_that_the_option_runs_code(command):
    text = CliRunner().invoke(main, [*command.split(), "--help-all"]).output
    words = " ".join(text.split())
    assert "--trust-remote-code" in words
    assert "Run Python files that an hf: model brings" in words


def test_code_that_ends_the_program_is_an_error_where_it_is_trusted(folder):
    (folder / "own.py").write_text("raise SystemExit(0)")
    with pytest.raises(ModelError, match="SystemExit"):
        load_model(f"hf:{folder}", trust_remote_code=True)
