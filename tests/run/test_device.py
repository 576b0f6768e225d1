import pytest

from hardsight.errors import OptionError
from hardsight.run.loop import chosen_device


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
