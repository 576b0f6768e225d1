"""The networks of the grammar answer as the oracle says they do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.fuzz.draw import Draw
from tests.fuzz.heads import _HEADS
from tests.fuzz.nets import make_net
from tests.fuzz.oracle import finite_rows


class Forced(Draw):
    """Choices of which some are made already, and all others are plain."""

    def __init__(self, number: int, **forced: str) -> None:
        super().__init__(0, number)
        self.forced = forced

    def pick(self, name, options, **chances):
        return self.forced.get(name.removeprefix("net.").replace(" ", "_"), options[0])


@pytest.mark.parametrize("quirk", ["plain", "nan"])
@pytest.mark.parametrize("depends_on", ["", "batch"])
@pytest.mark.parametrize("head", ["linear", *sorted(set(_HEADS) - {"linear"})])
def test_a_network_in_torch_is_the_one_of_the_oracle(tmp_path, head, depends_on, quirk):
    inputs = np.linspace(0, 1, 12 * 3 * 2 * 2).reshape(12, 3, 2, 2)  # later rows can be marked
    inputs[-2:] += 1
    draw = Forced(0, quirk=quirk, depends_on=depends_on, head=head)
    expected = make_net(draw, tmp_path, inputs, 3, is_one_batch=True).outputs.logits
    made = {}
    exec((tmp_path / "net.py").read_text(encoding="utf-8"), made)
    with torch.no_grad():
        logits = made["make"]()(torch.from_numpy(inputs).float()).numpy()
    finite = finite_rows(expected)
    assert finite.all() == (quirk != "nan")
    assert finite_rows(logits).tolist() == finite.tolist()
    np.testing.assert_allclose(logits[finite], expected[finite], rtol=1e-3, atol=1e-3)
