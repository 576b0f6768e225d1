import pytest
import torch
from torch.utils.data import DataLoader

import hardsight as hs
from hardsight.data import open_source
from hardsight.errors import OptionError
from hardsight.models import SmallCNN
from hardsight.preprocessing import Preprocessing
from hardsight.run.loop import chosen_device
from hardsight.run.train import Decoded, EvaluationBatches, Pixels, Shard


@pytest.mark.parametrize("name", ["meta", "hpu", "xla", "warp", ""])
def test_a_device_that_cannot_be_used_here_is_refused_with_why_and_what_to_pass(name):
    with pytest.raises(OptionError, match=r"cannot be used here \(.+\); pass device='auto' or"):
        chosen_device(name)


def test_an_error_without_words_is_named_by_its_type(monkeypatch):
    def silent(*_, **__):
        raise NotImplementedError

    monkeypatch.setattr("torch.empty", silent)
    with pytest.raises(OptionError, match=r"\(NotImplementedError\)"):
        chosen_device("cpu")


@pytest.fixture
def pinned(monkeypatch):
    """What loaders were told about page-locked memory, on a machine that has a GPU."""
    told, begun = [], DataLoader.__init__

    def begin(loader, *args, pin_memory=False, **options):
        told.append(pin_memory)
        begun(loader, *args, pin_memory=pin_memory, **options)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(DataLoader, "__init__", begin)
    return told


def test_batches_for_the_cpu_leave_page_locked_memory_and_so_cuda_alone(pinned):
    hs.score(
        SmallCNN(), "builtin:digits", split="test", rows=[0, 1], device="cpu", mean=(0.0,),
        std=(1.0,), show_progress=False,
    )  # fmt: skip
    digits = open_source("builtin:digits", split="test")
    data = Decoded(digits, Preprocessing(mean=(0.0,), std=(1.0,)), range(449))
    pixels = Pixels(data.how, channels_last=False, device=torch.device("cpu"))
    few = EvaluationBatches(data, pixels, batch_size=300, shard=Shard(), workers=0)
    assert sum(len(batch.labels) for batch in few) == 449
    assert pinned
    assert not any(pinned)
