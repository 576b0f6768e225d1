"""The code of the guide runs as printed."""

import re
from pathlib import Path

import pytest
import torch

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "swap-one-line.md"

# Lightning and transformers warn about their own dependencies and about small machines
pytestmark = pytest.mark.filterwarnings("ignore")


def blocks():
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.S)


class HubModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 3)

    def forward(self, inputs, labels=None):
        return {"logits": self.layer(inputs)}


def test_every_block_of_the_guide_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"inputs": torch.randn(20), "labels": torch.tensor(i % 3)} for i in range(16)]
    names = {"hub_model": HubModel(), "train_dataset": rows, "output_dir": str(tmp_path / "out")}
    before = names["hub_model"].layer.weight.clone()
    found = blocks()
    assert len(found) == 6
    for block in found:
        exec(compile(block, str(GUIDE), "exec"), names)
    assert torch.isfinite(names["loss"])
    assert names["trainer"].state.global_step == 2
    assert not torch.equal(names["hub_model"].layer.weight.cpu(), before)


def test_the_guides_error_message_is_the_real_one():
    from hardsight.errors import NonFiniteError
    from hardsight.losses import encouraging_loss

    logits = torch.zeros(64, 3)
    logits[[4, 9], 0] = float("nan")
    with pytest.raises(NonFiniteError) as caught:
        encouraging_loss(logits, torch.zeros(64).long(), check_finite=True)
    assert f"NonFiniteError: {caught.value}" in GUIDE.read_text()
