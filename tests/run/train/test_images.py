import os
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import hardsight as hs
from hardsight.data import MemorySource, batches, open_source
from hardsight.data.source import SourceView
from hardsight.errors import DataError
from hardsight.preprocessing import Preprocessing
from hardsight.run.train import (
    AugmentConfig,
    DataConfig,
    Decoded,
    Draws,
    EvaluationBatches,
    Pixels,
    ResidentBatches,
    Shard,
    StreamedBatches,
    TrainBatch,
    decoded_whole,
    fits,
    loaded,
    opened_sources,
)

CPU = torch.device("cpu")
HOW = Preprocessing(mean=(0.3,), std=(0.2,), channels=1)
AUGMENT = AugmentConfig(crop_padding=2, flip=True)


@pytest.fixture
def data(images):
    return Decoded(open_source(images), HOW, range(5, 60))


def made(data, kind=ResidentBatches, *, shard=None, batch_size=16, seed=3, augment=AUGMENT):
    pixels = Pixels(HOW, channels_last=False, device=CPU)
    options = {"batch_size": batch_size, "seed": seed, "shard": shard or Shard()}
    if kind is StreamedBatches:
        return kind(data, pixels, augment, workers=0, **options)
    return kind(decoded_whole(data, workers=0, show=False), pixels, augment, **options)


def epoch(loader, number):
    loader.set_epoch(number)
    return list(loader)


@given(st.data())
def test_a_crop_is_the_window_of_the_padded_image_mirrored_where_asked(chosen):
    padding = chosen.draw(st.integers(0, 3))
    height, width = chosen.draw(st.integers(2, 6)), chosen.draw(st.integers(2, 6))
    images = torch.arange(3 * 2 * height * width, dtype=torch.uint8).reshape(3, 2, height, width)
    corner = st.integers(0, 2 * padding)
    offsets = [[chosen.draw(corner), chosen.draw(corner)] for _ in range(4)]
    flips = [chosen.draw(st.booleans()) for _ in range(4)]
    rows = [chosen.draw(st.integers(0, 2)) for _ in range(4)]
    kept = ResidentBatches(
        TrainBatch(torch.arange(3), images, torch.zeros(3, dtype=torch.int64)),
        Pixels(Preprocessing(white=1.0), channels_last=False, device=CPU),
        AugmentConfig(crop_padding=padding), batch_size=4, seed=0, shard=Shard(),
    )  # fmt: skip
    drawn = Draws(torch.tensor(rows), torch.tensor(offsets), torch.tensor(flips))
    got = next(kept.drawn(drawn)).inputs
    frames = np.pad(images.numpy(), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    for at, (row, (top, left), flip) in enumerate(zip(rows, offsets, flips, strict=True)):
        window = frames[row, :, top : top + height, left : left + width]
        np.testing.assert_array_equal(got[at], window[:, :, ::-1] if flip else window)


def test_seed_and_epoch_decide_all_draws():
    first = Draws.of_epoch(50, AUGMENT, seed=1, epoch=2)
    again = Draws.of_epoch(50, AUGMENT, seed=1, epoch=2)
    for other in (Draws.of_epoch(50, AUGMENT, seed=1, epoch=3),
                  Draws.of_epoch(50, AUGMENT, seed=2, epoch=2)):  # fmt: skip
        for name in ("order", "offsets", "flips"):
            assert torch.equal(getattr(first, name), getattr(again, name))
            assert not torch.equal(getattr(first, name), getattr(other, name))
    assert sorted(first.order.tolist()) == list(range(50))
    assert set(first.offsets.flatten().tolist()) == set(range(5))
    assert 10 < int(first.flips.sum()) < 40


def test_turning_flips_off_does_not_shift_the_crops():
    with_flips = Draws.of_epoch(50, AUGMENT, seed=1, epoch=0)
    without = Draws.of_epoch(50, AugmentConfig(2, False), seed=1, epoch=0)
    assert torch.equal(with_flips.offsets, without.offsets)
    assert not without.flips.any()


def test_resident_and_streamed_batches_are_the_same(data):
    resident, streamed = made(data), made(data, StreamedBatches)
    for number in (0, 1):
        pairs = list(zip(epoch(resident, number), epoch(streamed, number), strict=True))
        assert len(pairs) == len(resident) == 4  # 55 examples by 16
        for one, two in pairs:
            assert torch.equal(one.index, two.index)
            assert torch.equal(one.labels, two.labels)
            torch.testing.assert_close(one.inputs, two.inputs, rtol=0, atol=0)


def test_an_epoch_shows_every_example_once_with_its_own_position_and_label(data, images):
    source = open_source(images)
    seen = epoch(made(data), 4)
    index = torch.cat([batch.index for batch in seen])
    assert sorted(index.tolist()) == list(range(5, 60))
    labels = torch.cat([batch.labels for batch in seen])
    assert labels.tolist() == [source.label_of(int(i)) for i in index]


def test_without_augmentation_inputs_are_those_of_scoring(data, images):
    (batch, *_) = epoch(made(data, augment=AugmentConfig(), batch_size=55), 0)
    scored = next(batches(open_source(images), HOW, start=5, stop=60, batch_size=55))
    order = batch.index.argsort()
    torch.testing.assert_close(batch.inputs[order], scored.inputs, rtol=1e-6, atol=1e-6)


def test_processes_share_each_batch_out_in_its_order_and_nobody_is_left_out(data):
    whole = epoch(made(data, batch_size=16), 0)
    loaders = [made(data, batch_size=16, shard=Shard(rank, 3)) for rank in range(3)]
    parts = [epoch(loader, 0) for loader in loaders]
    assert [len(part) for part in parts] == [len(loader) for loader in loaders] == [4, 4, 4]
    for at, batch in enumerate(whole):
        shares = [part[at].index for part in parts]
        assert [loader.share_of(at).own for loader in loaders] == [len(share) for share in shares]
        assert torch.cat(shares).tolist() == batch.index.tolist()


def test_a_process_without_a_row_repeats_one_that_does_not_count(data):
    # 55 = 2 * 27 + 1: one example is left for two processes
    loaders = [made(data, batch_size=27, shard=Shard(rank, 2)) for rank in range(2)]
    last = [epoch(loader, 0)[-1].index.tolist() for loader in loaders]
    assert last[0] == last[1]
    assert [loader.share_of(2).own for loader in loaders] == [1, 0]
    assert [loader.share_of(2).weight for loader in loaders] == [2.0, 0.0]


def test_evaluation_leaves_nobody_out_whatever_the_number_of_processes(data):
    pixels = Pixels(HOW, channels_last=True, device=CPU)
    for whole in (None, decoded_whole(data, workers=0, show=False)):
        seen = []
        for rank in range(3):
            evaluation = EvaluationBatches(
                data, pixels, batch_size=7, shard=Shard(rank, 3), workers=0, whole=whole
            )
            found = list(evaluation)
            assert len(found) == len(evaluation)
            seen += [int(i) for batch in found for i in batch.index]
        assert sorted(seen) == list(range(5, 60))


def test_channels_last_is_a_layout_and_changes_no_value():
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    how = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    first, last = (
        Pixels(how, channels_last=layout, device=CPU).normalised(images) for layout in (0, 1)
    )
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(first, last, rtol=0, atol=0)
    mean, std = torch.tensor(how.mean).view(3, 1, 1), torch.tensor(how.std).view(3, 1, 1)
    torch.testing.assert_close(first, (images / 255 - mean) / std)


def test_vectors_of_a_users_dataset_are_used_as_they_are(vectors):
    data = Decoded(open_source(vectors), Preprocessing(), range(len(vectors)))
    assert not data.are_ours
    (batch,) = epoch(made(data, batch_size=60), 0)
    torch.testing.assert_close(batch.inputs, vectors.inputs[batch.index], rtol=0, atol=0)


def test_an_unreadable_image_stops_the_run_with_its_name(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name)
    (tmp_path / "b/2.png").write_bytes(b"no image")
    data = Decoded(open_source(tmp_path), HOW, range(3))
    for workers in (0, 1):
        with pytest.raises(DataError, match=r"example 2 \(b/2.png\) cannot be read"):
            list(loaded(data, torch.arange(3), batch_size=3, workers=workers))


def test_images_of_different_sizes_need_a_size(tmp_path):
    for name, side in (("a/1.png", 4), ("b/1.png", 5)):
        (tmp_path / name).parent.mkdir()
        Image.new("L", (side, side)).save(tmp_path / name)
    data = Decoded(open_source(tmp_path), HOW, range(2))
    with pytest.raises(DataError, match=r"\[1, 4, 4\] and \[1, 5, 5\] .*set data.size ="):
        list(loaded(data, torch.arange(2), batch_size=2, workers=0))
    sized = Decoded(open_source(tmp_path), Preprocessing(size=(3, 3), channels=1), range(2))
    (batch,) = loaded(sized, torch.arange(2), batch_size=2, workers=0)
    assert batch[1].shape == (2, 1, 3, 3)


def test_images_are_resident_where_they_take_a_quarter_of_the_memory(data, monkeypatch):
    assert fits(data, CPU, padding=2)  # there is as much on any machine
    needed = 55 * 12 * 12  # 8x8 with a frame of 2, one byte each
    for free, wanted in ((4 * needed, True), (4 * needed - 4, False)):
        pages = {"SC_AVPHYS_PAGES": free, "SC_PAGE_SIZE": 1}
        with monkeypatch.context() as patch:
            patch.setattr(os, "sysconf", pages.__getitem__)
            assert fits(data, CPU, padding=2) == wanted
            # a GPU is asked for its own
            patch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2**40))
            patch.setattr(os, "sysconf", {}.__getitem__)
            assert fits(data, torch.device("cuda"), padding=2) == wanted


@pytest.mark.parametrize("shape", [(9, 6, 5), (9, 6, 5, 3)])
@pytest.mark.parametrize("size", [None, (6, 5), (3, 3)])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_pictures_kept_in_memory_are_those_that_would_be_decoded(shape, size, channels):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    source = MemorySource(pixels, np.arange(9) % 2)
    data = Decoded(source, Preprocessing(size=size, channels=channels), [7, 2, 3])
    whole = decoded_whole(data, workers=0, show=False)
    index, images, labels = next(loaded(data, torch.arange(3), batch_size=3, workers=0))
    for found, wanted in zip(whole, (index, images, labels), strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(700, 6, 5), (700, 6, 5, 3)])
def test_pictures_in_memory_are_measured_as_those_that_are_read(shape):
    pixels = np.random.default_rng(0).beta(2, 1, size=shape) * np.linspace(90, 255, shape[-1])
    source = MemorySource(pixels.astype(np.uint8), np.arange(700) % 2)
    read = CountsReadings(source)
    counted, summed = (
        opened_sources(DataConfig("pictures", validation=0.1), data, seed=0).train
        for data in (source, read)
    )
    assert read.readings
    assert (counted.how.mean, counted.how.std) == (summed.how.mean, summed.how.std)
    assert counted.rows == summed.rows
    used = source.images[counted.rows].reshape(-1, 1 if len(shape) == 3 else 3) / 255
    np.testing.assert_allclose(counted.how.mean, used.mean(axis=0), atol=6e-5)
    np.testing.assert_allclose(counted.how.std, used.std(axis=0), atol=6e-5)


class CountsReadings(SourceView):
    """Pictures of another source, and how often each was read."""

    def __init__(self, source):
        super().__init__([source])
        self.readings = Counter()

    def content(self, content, index):
        self.readings[index] += 1
        return content


def test_a_picture_is_decoded_once_though_it_is_measured_and_trained_on(images, tmp_path):
    source = CountsReadings(open_source(images))
    done = hs.train(
        "small_cnn",
        source,
        out=tmp_path / "run",
        epochs=2,
        batch_size=16,
        device="cpu",
        workers=0,
        show_progress=False,
    )
    assert done.preprocessing.origin == "measured on the training images"
    # the first one, of all and of those trained on, tells what all are like before it is known how
    # they are read
    counts = sorted(source.readings.values(), reverse=True)
    assert len(counts) == len(source)
    assert set(counts[2:]) == {1}


def test_what_is_kept_of_measuring_is_what_would_be_decoded_again(images):
    data, again = (Decoded(open_source(images), HOW, range(5, 60)) for _ in range(2))
    rows = torch.arange(0, 55, 2)
    _, some, _ = next(loaded(data, rows, batch_size=55, workers=0))
    data.keep(rows, some)
    for kept, decoded in zip(
        decoded_whole(data, workers=0, show=False),
        decoded_whole(again, workers=0, show=False),
        strict=True,
    ):
        torch.testing.assert_close(kept, decoded, rtol=0, atol=0)
