import multiprocessing.connection
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from hardsight.data import Batch, batches, open_source
from hardsight.errors import BadExampleError, DataError, HardsightWarning, LabelError, OptionError
from hardsight.preprocessing import Preprocessing

PLAIN = Preprocessing()


@pytest.fixture
def many(tmp_path, png_bytes):
    """23 images in two classes; 5 and 20 are cut off. Red is the position."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    cut_off = png_bytes(noise)[:5000]
    for number in range(23):
        folder = tmp_path / "photos" / ("a" if number < 12 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        content = png_bytes((number, 0, 0))
        (folder / f"{number:02}.png").write_bytes(cut_off if number in (5, 20) else content)
    return open_source(tmp_path / "photos")


def joined(found):
    """Everything of several batches: positions, ids, labels, first pixels, errors."""
    found = list(found)
    pixels = [batch.inputs[:, 0, 0, 0] * 255 for batch in found if batch.inputs is not None]
    return (
        torch.cat([batch.index for batch in found]).tolist(),
        [name for batch in found for name in batch.ids],
        torch.cat([batch.labels for batch in found]).tolist(),
        torch.cat(pixels).round().int().tolist(),
        [error for batch in found for error in batch.errors],
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_every_example_comes_once_in_order_or_as_an_error(many, workers, batch_size):
    index, ids, labels, pixels, errors = joined(
        batches(many, PLAIN, batch_size=batch_size, workers=workers)
    )
    good = [number for number in range(23) if number not in (5, 20)]
    assert index == good
    assert pixels == good
    assert labels == [int(number >= 12) for number in good]
    assert ids[:2] == ["a/00.png", "a/01.png"]
    assert [(where, name) for where, name, _ in errors] == [(5, "a/05.png"), (20, "b/20.png")]
    assert all(why.startswith("damaged image") for _, _, why in errors)


def test_a_part_can_be_read_and_batches_cover_positions(many):
    found = list(batches(many, PLAIN, start=4, stop=11, batch_size=3))
    assert [batch.index.tolist() for batch in found] == [[4, 6], [7, 8, 9], [10]]
    assert joined(batches(many, PLAIN, start=21, stop=99))[0] == [21, 22]
    assert list(batches(many, PLAIN, start=23)) == []


def test_a_batch_without_a_single_good_row_has_no_inputs(many):
    (batch,) = batches(many, PLAIN, start=5, stop=6, batch_size=1)
    assert batch.inputs is None
    assert batch.index.shape == batch.labels.shape == (0,)
    assert batch.labels.dtype == torch.int64
    assert (batch.ids, len(batch.errors)) == ([], 1)


def test_a_stream_of_nothing_says_so():
    class Empty(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(DataError, match="no examples in Empty: the stream is empty"):
        list(batches(open_source(Empty()), PLAIN))


@pytest.mark.parametrize("workers", [0, 1])
def test_data_of_which_nothing_can_be_read_says_why(tmp_path, workers):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"not a picture")
    source = open_source(tmp_path)
    said = (
        r"none of the 2 examples of .* could be read; the first, a/x\.png: not an image in a known "
        "format"
    )
    with pytest.raises(DataError, match=said):
        list(batches(source, PLAIN, batch_size=1, workers=workers))
    assert len(list(batches(source, PLAIN, stop=2, batch_size=1))) == 2  # asked for one by one


def test_strict_reading_stops_at_the_first_bad_example(many):
    seen = []
    with pytest.raises(BadExampleError, match=r"a/05\.png cannot be read: damaged image"):
        seen.extend(batches(many, PLAIN, batch_size=3, strict=True))
    assert len(seen) == 1


def test_images_are_preprocessed(many):
    how = Preprocessing(size=(8, 8), mean=(0.5,), std=(0.25,))
    batch = next(batches(many, how, batch_size=2))
    assert batch.inputs.shape == (2, 3, 8, 8)
    torch.testing.assert_close(batch.inputs[1, 0, 3, 3], torch.tensor((1 / 255 - 0.5) / 0.25))


def test_images_of_different_size_ask_for_one(tmp_path, png_bytes):
    for name, size in (("a", (6, 4)), ("b", (5, 5))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(png_bytes(size=size))
    source = open_source(tmp_path)
    message = r"one shape, got \[3, 4, 6\] \(a/x\.png\) and \[3, 5, 5\] \(b/x\.png\); pass size="
    for workers in (0, 1):
        with pytest.raises(DataError, match=message):
            list(batches(source, PLAIN, workers=workers))
    assert joined(batches(source, Preprocessing(size=(4, 4))))[0] == [0, 1]


def _without_room(worker):
    """Leave a loader process no room in shared memory."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="shared memory is a file there")
@pytest.mark.parametrize("nested", [False, True])
def test_shared_memory_that_is_full_is_not_taken_for_inputs_that_do_not_stack(nested):
    inputs = torch.rand(8, 3, 32, 32)
    rows = [({"a": x, "b": 1} if nested else x, at % 2) for at, x in enumerate(inputs)]
    loader = DataLoader(rows, batch_size=4, num_workers=1, worker_init_fn=_without_room)
    said = r"loader process cannot share memory .*File too large.*workers=0 \(--workers 0\)"
    with pytest.raises(DataError, match=said):
        list(batches(open_source(loader), PLAIN))


def test_wrong_preprocessing_stops_instead_of_spoiling_every_example(many):
    for workers in (0, 1):
        with pytest.raises(OptionError, match=r"^expected mean and std with 1 or 3"):
            list(batches(many, Preprocessing(mean=(0.1, 0.2)), workers=workers))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"start": -1}, {"workers": -1}])
def test_impossible_options_are_refused(many, options):
    with pytest.raises(OptionError, match="batch_size >= 1, start >= 0 and workers >= 0"):
        next(batches(many, PLAIN, **options))


def test_the_users_random_state_is_left_alone(many):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    list(batches(many, PLAIN, workers=1))
    torch.testing.assert_close(torch.rand(2), expected)


def test_every_tensor_of_a_batch_is_pinned_also_in_mappings(monkeypatch):
    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda self, *_: (pinned.append(self.shape), self + 0)[1]
    )
    inputs = {"tokens": torch.ones(2, 7), "mask": torch.ones(2, 5)}
    batch = Batch(torch.arange(2), ["a", "b"], inputs, torch.zeros(2), [(2, "c", "bad")])
    got = batch.pin_memory()
    assert sorted(map(list, pinned)) == [[2], [2], [2, 5], [2, 7]]
    torch.testing.assert_close(got.inputs, inputs)
    assert (got.ids, got.errors) == (batch.ids, batch.errors)
    assert Batch(torch.arange(0), [], None, torch.arange(0)).pin_memory().inputs is None


def test_tensors_of_a_dataset_are_not_touched():
    inputs = torch.randn(5, 3, 4, 4).to(torch.float64)
    source = open_source(TensorDataset(inputs, torch.tensor([0, 1, 0, 1, 1])))
    found = list(batches(source, Preprocessing(size=(2, 2), mean=(9.0,)), batch_size=2))
    torch.testing.assert_close(torch.cat([batch.inputs for batch in found]), inputs)


class Odd(Dataset):
    """Items of every kind a user may yield; reading 3 raises, reading 6 ends the process."""

    def __init__(self, deadly=(), how="exit"):
        self.deadly, self.how = deadly, how

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.deadly:
            if self.how == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 3:
            raise RuntimeError("cannot\nread this")
        return Image.new("L", (2, 2), index), index % 2


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_a_dataset_are_preprocessed_and_its_exceptions_reported(workers):
    index, _, labels, pixels, errors = joined(
        batches(open_source(Odd()), PLAIN, batch_size=5, workers=workers)
    )
    good = [number for number in range(12) if number != 3]
    assert (index, pixels, labels) == (good, good, [number % 2 for number in good])
    assert errors == [(3, "3", "RuntimeError: cannot read this")]


@pytest.fixture
def quick_notice(monkeypatch):
    """Let the loader look for dead workers every 0.3 seconds instead of every 5."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.3,))


@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize(("workers", "batch_size"), [(1, 12), (2, 2)])
def test_an_example_that_kills_its_worker_is_an_error_row(quick_notice, how, workers, batch_size):
    source = open_source(Odd(deadly=(6, 7, 11), how=how))
    index, _, _, pixels, errors = joined(
        batches(source, PLAIN, batch_size=batch_size, workers=workers)
    )
    good = [0, 1, 2, 4, 5, 8, 9, 10]
    assert (index, pixels) == (good, good)
    assert [where for where, _, _ in errors] == [3, 6, 7, 11]
    assert all("loader process died" in errors[row][2] for row in (1, 2, 3))


@pytest.mark.parametrize(
    "broken",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        FileNotFoundError(2, "No such file or directory"),
        EOFError(),
        RuntimeError("Pin memory thread exited unexpectedly"),
    ],
    ids=lambda err: type(err).__name__,
)
def test_a_worker_that_dies_while_it_hands_over_a_batch_loses_no_example(monkeypatch, broken):
    handed_over, taken = _MultiProcessingDataLoaderIter._try_get_data, []

    def breaks_once(self, *args, **options):
        taken.append(self)
        if len(taken) == 3:
            raise broken
        return handed_over(self, *args, **options)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", breaks_once)
    index, _, _, _, errors = joined(batches(open_source(Odd()), PLAIN, batch_size=2, workers=2))
    assert index == [number for number in range(12) if number != 3]
    assert [where for where, _, _ in errors] == [3]
    assert len(taken) > 3


def test_what_user_code_raises_in_a_worker_is_raised_again():
    def collate(rows):
        raise FileNotFoundError("no such table")

    loader = DataLoader(Odd(), batch_size=2, collate_fn=collate, num_workers=1)
    with pytest.raises(Exception, match="no such table"):
        list(batches(open_source(loader), PLAIN, workers=1))


def test_a_dying_worker_does_not_interrupt_the_code_that_uses_the_batches(quick_notice):
    # torch's own handler would raise in this loop, out of reach of `batches`
    for _ in batches(open_source(Odd(deadly=(8,))), PLAIN, batch_size=1, workers=1):
        deadline = time.monotonic() + 0.1
        while time.monotonic() < deadline:
            sum(range(1000))


def test_labels_outside_the_classes_stop_the_run_from_a_worker_too():
    source = open_source(Odd(), classes=["only", "these"])
    assert len(list(batches(source, PLAIN, workers=1))) == 1

    class Wrong(Odd):
        def __getitem__(self, index):
            return torch.ones(1), index

    for workers in (0, 1):
        with pytest.raises(LabelError, match=r"^expected labels in \[0, 2\), got 2"):
            list(batches(open_source(Wrong(), classes=["a", "b"]), PLAIN, workers=workers))


def test_mappings_and_arrays_are_collated():
    class Texts(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return {"input_ids": torch.tensor([index, 1]), "mask": 1, "label": index}

    (batch,) = batches(open_source(Texts()), PLAIN)
    assert batch.inputs["input_ids"].tolist() == [[0, 1], [1, 1], [2, 1]]
    frozen = np.ones((2, 2), dtype=">f4")
    frozen.setflags(write=False)
    (batch,) = batches(open_source([(frozen, 0), (frozen[::-1], 1)]), PLAIN)
    torch.testing.assert_close(batch.inputs, torch.ones(2, 2, 2))


def test_inputs_that_do_not_stack_are_explained():
    data = [(object(), 0), (object(), 1)]
    with pytest.raises(DataError, match="do not stack into a batch: TypeError"):
        list(batches(open_source(data), PLAIN))


class Ragged(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index == 2:
            raise ValueError("gone")
        return {"tokens": list(range(index + 1)), "answer": index % 2}


def padded(samples):
    width = max(len(sample["tokens"]) for sample in samples)
    rows = [sample["tokens"] + [-1] * (width - len(sample["tokens"])) for sample in samples]
    return {"tokens": torch.tensor(rows), "labels": torch.tensor([s["answer"] for s in samples])}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loaders_collate_function_batch_size_and_workers_are_used(workers):
    loader = DataLoader(Ragged(), batch_size=4, collate_fn=padded, num_workers=workers)
    first, second = batches(open_source(loader), PLAIN)
    assert first.inputs["tokens"].tolist() == [[0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 2, 3]]
    assert (first.index.tolist(), first.labels.tolist()) == ([0, 1, 3], [0, 1, 1])
    assert first.errors == [(2, "2", "ValueError: gone")]
    assert second.index.tolist() == [4]


def test_the_order_is_the_datasets_even_from_a_shuffling_loader():
    loader = DataLoader(Odd(), batch_size=5, shuffle=True)
    assert joined(batches(open_source(loader), PLAIN))[0] == [0, 1, 2, *range(4, 12)]


FEW_FILES = """
import resource, torch
from torch.utils.data import Dataset
from hardsight.data import batches, open_source
from hardsight.errors import DataError
from hardsight.preprocessing import Preprocessing

class Rows(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return torch.ones(3), index % 2

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    kept = list(batches(open_source(Rows()), Preprocessing(), batch_size=1, workers=2))
    print("read", len(kept))
except DataError as err:
    print("refused:", err)
"""


def test_running_out_of_open_files_is_said_with_what_to_do():
    found = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=120, check=False
    )
    assert re.search(r"refused: .*[Tt]oo many open files.*--workers 0.*ulimit -n", found.stdout), (
        found.stderr
    )


class Answers(Dataset):
    """Lists of different lengths, with their labels."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return [index] * (1 + index % 4), index % 2


def rows_of(samples):
    width = max(len(values) for values, _ in samples)
    rows = [values + [-1] * (width - len(values)) for values, _ in samples]
    return torch.tensor(rows), torch.tensor([label for _, label in samples])


def longest_first(samples):  # as is usual before packing sequences
    return rows_of(sorted(samples, key=lambda sample: -len(sample[0])))


def with_other_labels(samples):
    inputs, labels = rows_of(samples)
    return inputs, 1 - labels


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_sorts_its_examples_is_refused(workers):
    loader = DataLoader(Answers(), batch_size=3, collate_fn=longest_first, num_workers=workers)
    with pytest.raises(
        DataError, match=r"collate_fn of Answers changes the order .*keep the order"
    ):
        list(batches(open_source(loader), PLAIN))
    # other labels in the same order are its own affair
    for collate, first in ((rows_of, 0), (with_other_labels, 1)):
        loader = DataLoader(Answers(), batch_size=3, collate_fn=collate, num_workers=workers)
        found = list(batches(open_source(loader), PLAIN))
        assert [batch.index.tolist() for batch in found] == [[0, 1, 2], [3, 4, 5]]
        assert found[0].labels.tolist() == [first, 1 - first, first]


class Named(Answers):
    """The same with labels that only a collate_fn can read."""

    def __getitem__(self, index):
        values, label = super().__getitem__(index)
        return {"words": values, "answer": ("no", "yes")[label]}


def read(samples):
    return [(sample["words"], ("no", "yes").index(sample["answer"])) for sample in samples]


def test_a_sorting_collate_function_is_refused_also_if_it_alone_reads_the_labels():
    loader = DataLoader(Named(), batch_size=3, collate_fn=lambda some: longest_first(read(some)))
    with pytest.raises(DataError, match=r"collate_fn of Named changes the order .*keep the order"):
        list(batches(open_source(loader), PLAIN))
    loader = DataLoader(Named(), batch_size=3, collate_fn=lambda some: rows_of(read(some)))
    read_in_order = list(batches(open_source(loader), PLAIN))  # a warning would be an error
    assert torch.cat([batch.labels for batch in read_in_order]).tolist() == [0, 1, 0, 1, 0, 1]


class OfOneClass(Answers):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], 1


@pytest.mark.parametrize(
    "collate", [longest_first, lambda some: (longest_first(some)[0], rows_of(some)[1])]
)
def test_a_sorting_collate_function_is_refused_also_if_all_labels_are_the_same(collate):
    loader = DataLoader(OfOneClass(), batch_size=3, collate_fn=collate)
    with pytest.raises(DataError, match=r"collate_fn of OfOneClass changes the order"):
        list(batches(open_source(loader), PLAIN))
    loader = DataLoader(OfOneClass(), batch_size=3, collate_fn=rows_of)
    assert sum(len(batch.labels) for batch in batches(open_source(loader), PLAIN)) == 6


def test_a_collate_function_that_sorts_and_names_other_labels_is_refused():
    def collate(samples):
        inputs, labels = longest_first(samples)
        return inputs, labels + 2

    loader = DataLoader(Answers(), batch_size=3, collate_fn=collate)
    with pytest.raises(DataError, match="changes the order of the examples"):
        list(batches(open_source(loader), PLAIN))


def test_a_collate_function_that_draws_and_alone_reads_the_labels_is_told_of():
    def collate(samples):
        inputs, labels = rows_of(read(samples))
        return inputs + torch.rand(inputs.shape), labels

    loader = DataLoader(Named(), batch_size=3, collate_fn=collate)
    with pytest.warns(HardsightWarning, match=r"only the collate_fn of Named can read the labels"):
        assert len(list(batches(open_source(loader), PLAIN))) == 2


def test_collate_functions_that_fail_or_drop_examples_are_explained():
    def failing(samples):
        raise KeyError("colour")

    def dropping(samples):
        return torch.ones(1), torch.zeros(1)

    for collate, message in (
        (failing, r"collate_fn of Ragged failed: KeyError: 'colour'"),
        (dropping, "expected 4 labels from the collate_fn of Ragged, got 1; it must keep"),
    ):
        source = open_source(DataLoader(Ragged(), batch_size=5, collate_fn=collate))
        with pytest.raises(DataError, match=message):
            list(batches(source, PLAIN))


class Stream(IterableDataset):
    def __init__(self, breaks_at=None):
        self.breaks_at = breaks_at

    def __iter__(self):
        for number in range(7):
            if number == self.breaks_at:
                raise OSError("line dropped")
            yield Image.new("L", (2, 2), number), number % 2


@pytest.mark.parametrize(("start", "stop"), [(0, None), (2, None), (0, 5), (3, 4), (7, None)])
def test_a_stream_is_read_in_order_from_any_position(start, stop):
    found = list(
        batches(open_source(Stream()), PLAIN, start=start, stop=stop, batch_size=2, workers=2)
    )
    positions = list(range(7))[start:stop]
    assert [index for batch in found for index in batch.index.tolist()] == positions
    for batch in found:
        torch.testing.assert_close((batch.inputs[:, 0, 0, 0] * 255).long(), batch.index)


def test_a_stream_that_breaks_says_where():
    with pytest.raises(DataError, match="Stream broke after position 4: OSError: line dropped"):
        list(batches(open_source(Stream(breaks_at=5)), PLAIN, batch_size=2))


def test_a_stream_in_a_loader_uses_its_collate_function():
    def collate(samples):
        return torch.tensor([image.getpixel((0, 0)) for image, _ in samples]), torch.tensor(
            [label for _, label in samples]
        )

    source = open_source(DataLoader(Stream(), batch_size=4, collate_fn=collate))
    assert [batch.inputs.tolist() for batch in batches(source, PLAIN)] == [[0, 1, 2, 3], [4, 5, 6]]


def test_importing_data_and_listing_a_source_loads_no_torch(class_folders):
    code = (
        "import sys; from hardsight.data import open_source, thumbnail;"
        f"source = open_source({str(class_folders)!r}); thumbnail(source[0].content);"
        "source.fingerprint();"
        "print(sorted({'torch', 'datasets', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    planted = "import sys; sys.modules['sklearn'] = sys;"  # the real ones take seconds to load
    probe = subprocess.run(
        [sys.executable, "-c", planted + code], capture_output=True, text=True, check=True
    )
    assert probe.stdout.strip() == "['sklearn']"


def test_a_reader_that_is_interrupted_leaves_no_traceback_of_its_workers(capfd, monkeypatch):
    data = TensorDataset(torch.zeros(64, 3, 16, 16), torch.arange(64) % 2)
    loaded = batches(open_source(data), Preprocessing(), batch_size=8, workers=1)
    next(loaded)

    def interrupted(*args):
        raise KeyboardInterrupt

    # the moment in which shared memory is handed over
    monkeypatch.setattr(multiprocessing.connection, "answer_challenge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loaded)
    time.sleep(0.5)  # the worker finds its reader gone
    loaded.close()
    assert "Traceback" not in capfd.readouterr().err
