import pickle
import struct
import zipfile

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from hardsight.data import EmbeddingSource, open_source
from hardsight.errors import (
    AmbiguousHeadError,
    DataError,
    HardsightWarning,
    LabelError,
    OptionError,
    ShapeError,
    UnsafeFileError,
)

RNG = np.random.default_rng(0)
EMBEDDINGS = RNG.normal(size=(7, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2, 2])
WEIGHTS = RNG.normal(size=(3, 4)).astype(np.float32)
BIAS = RNG.normal(size=3).astype(np.float32)


def assert_rows(source, expected=EMBEDDINGS):
    assert isinstance(source, EmbeddingSource)
    assert (len(source), source.width, source.dtype) == (*expected.shape, expected.dtype)
    np.testing.assert_array_equal(source.chunk(0, len(source)), expected)
    np.testing.assert_array_equal(source.chunk(2, 5), expected[2:5])
    np.testing.assert_array_equal(source.chunk(5, 100), expected[5:])
    assert source.chunk(10**6, 10**6 + 1).shape == (0, expected.shape[1])
    torch.from_numpy(source.chunk(0, 1))  # warns, and so fails, on read-only memory


@pytest.fixture
def whole(tmp_path):
    """The parts every self-contained file of this test holds."""
    return {"embeddings": EMBEDDINGS, "labels": LABELS, "class_weights": WEIGHTS, "bias": BIAS}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npz_holds_everything(tmp_path, whole, save, dtype):
    save(tmp_path / "e.npz", **whole | {"embeddings": EMBEDDINGS.astype(dtype)})
    source = open_source(tmp_path / "e.npz")
    assert_rows(source, EMBEDDINGS.astype(dtype))
    np.testing.assert_array_equal(source.labels, LABELS)
    np.testing.assert_array_equal(source.class_weights, WEIGHTS)
    np.testing.assert_array_equal(source.bias, BIAS)
    assert source.labels.dtype == np.int64
    assert (source.classes, source.id_of(3), source.label_of(5)) == (("0", "1", "2"), "3", 2)


def test_safetensors_holds_everything(tmp_path, whole):
    save_file(whole, tmp_path / "e.safetensors")
    source = open_source(tmp_path / "e.safetensors")
    assert_rows(source)
    np.testing.assert_array_equal(source.bias, BIAS)


def test_bfloat16_is_widened_exactly(tmp_path):
    rows = torch.tensor(EMBEDDINGS).bfloat16()
    save_torch_file(
        {"embeddings": rows, "labels": torch.tensor(LABELS)}, tmp_path / "e.safetensors"
    )
    assert_rows(open_source(tmp_path / "e.safetensors"), rows.float().numpy())


def test_npy_takes_labels_and_weights_from_other_files(tmp_path):
    np.save(tmp_path / "e.npy", EMBEDDINGS)
    np.save(tmp_path / "labels.npy", LABELS)
    np.savez(tmp_path / "head.npz", class_weights=WEIGHTS, bias=BIAS)
    source = open_source(
        tmp_path / "e.npy", labels=tmp_path / "labels.npy", class_weights=tmp_path / "head.npz"
    )
    assert_rows(source)
    np.testing.assert_array_equal(source.class_weights, WEIGHTS)
    np.testing.assert_array_equal(source.bias, BIAS)


@pytest.mark.parametrize("order", ["column-major", "big-endian"])
def test_npy_in_unusual_order_is_read(tmp_path, order):
    stored = np.asfortranarray(EMBEDDINGS) if order == "column-major" else EMBEDDINGS.astype(">f4")
    np.save(tmp_path / "e.npy", stored)
    assert_rows(open_source(tmp_path / "e.npy", labels=LABELS))


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_chunks_are_views_of_the_file(tmp_path, suffix):
    file = tmp_path / f"e.{suffix}"
    if suffix == "npy":
        np.save(file, EMBEDDINGS)
    elif suffix == "npz":
        np.savez(file, embeddings=EMBEDDINGS)
    else:
        save_file({"embeddings": EMBEDDINGS}, file)
    source = open_source(file, labels=LABELS)
    assert np.shares_memory(source.chunk(0, 4), source.chunk(2, 6))


def test_writing_to_a_chunk_never_reaches_the_file(tmp_path):
    np.save(tmp_path / "e.npy", EMBEDDINGS)
    before = (tmp_path / "e.npy").read_bytes()
    open_source(tmp_path / "e.npy", labels=LABELS).chunk(0, 7)[:] = 9
    assert (tmp_path / "e.npy").read_bytes() == before


def test_pages_already_read_are_given_back(tmp_path):
    file = tmp_path / "large.npy"
    rows, width, step = 50_000, 2048, 2_500  # 390 MiB of zeros, which take no room on disk
    np.lib.format.open_memmap(file, "w+", np.float32, (rows, width)).flush()
    source = open_source(file, labels=np.arange(rows) % 2)
    process = psutil.Process()
    before, most = process.memory_info().rss, 0
    for _ in range(2):
        for start in range(0, rows, step):
            assert source.chunk(start, start + step).sum() == 0
            most = max(most, process.memory_info().rss - before)
    assert most < 150 * 2**20


def test_a_view_keeps_its_content_when_pages_are_given_back(tmp_path):
    # 80 rows of a MiB: more than is held before pages are given back
    values = np.arange(80 * 2**18, dtype=np.float32).reshape(80, 2**18)
    np.save(tmp_path / "e.npy", values)
    source = open_source(tmp_path / "e.npy", labels=np.arange(80) % 2)
    first = source.chunk(0, 4)
    for start in (76, 3, 17, 0, 79):
        np.testing.assert_array_equal(source.chunk(start, start + 4), values[start : start + 4])
    np.testing.assert_array_equal(first, values[:4])


def test_a_source_pickles_as_its_place_on_disk(tmp_path):
    np.save(tmp_path / "e.npy", np.zeros((1000, 64), dtype=np.float32))
    source = open_source(tmp_path / "e.npy", labels=np.arange(1000) % 3)
    source.chunk(0, 10)
    content = pickle.dumps(source)
    assert len(content) < 20_000
    assert pickle.loads(content).chunk(990, 1000).shape == (10, 64)


def state_dict():
    return {"body.weight": torch.zeros(9, 8), "fc.weight": torch.tensor(WEIGHTS),
            "fc.bias": torch.tensor(BIAS)}  # fmt: skip


@pytest.mark.parametrize("kind", ["safetensors", "pt", "nested pt", "1x1 convolution"])
def test_the_head_is_found_in_a_state_dict_by_its_width(tmp_path, kind):
    file = tmp_path / ("net.safetensors" if kind == "safetensors" else "net.pt")
    content = state_dict()
    if kind == "1x1 convolution":
        content["fc.weight"] = content["fc.weight"][:, :, None, None]
    if kind == "safetensors":
        save_torch_file(content, file)
    else:
        torch.save({"epoch": 3, "state_dict": content} if kind == "nested pt" else content, file)
    source = open_source(EMBEDDINGS, labels=LABELS, class_weights=str(file))
    np.testing.assert_array_equal(source.class_weights, WEIGHTS)
    np.testing.assert_array_equal(source.bias, BIAS)


def test_two_possible_heads_are_named_and_one_can_be_chosen(tmp_path):
    file = tmp_path / "net.safetensors"
    save_torch_file({**state_dict(), "aux.weight": torch.ones(5, 4)}, file)
    with pytest.raises(AmbiguousHeadError, match=r"2 arrays in .* \(aux.weight, fc.weight\); pass"):
        open_source(EMBEDDINGS, labels=LABELS, class_weights=file)
    source = open_source(EMBEDDINGS, labels=LABELS, class_weights=f"{file}:aux.weight")
    assert (source.class_weights.shape, source.bias, len(source.classes)) == ((5, 4), None, 5)
    named = open_source(EMBEDDINGS, labels=LABELS, class_weights=file, classes=["a", "b", "c"])
    np.testing.assert_array_equal(named.class_weights, WEIGHTS)


def test_a_head_without_a_row_for_every_label_is_no_candidate(tmp_path):
    save_torch_file({**state_dict(), "two.weight": torch.ones(2, 4)}, tmp_path / "n.safetensors")
    source = open_source(EMBEDDINGS, labels=LABELS, class_weights=tmp_path / "n.safetensors")
    np.testing.assert_array_equal(source.class_weights, WEIGHTS)


def test_weights_and_bias_may_be_given_as_arrays_and_tensors():
    source = open_source(
        EMBEDDINGS, labels=LABELS, class_weights=torch.tensor(WEIGHTS), bias=BIAS.tolist()
    )
    np.testing.assert_array_equal(source.class_weights, WEIGHTS)
    np.testing.assert_allclose(source.bias, BIAS)


def test_one_label_only_is_fine_where_the_head_tells_the_classes():
    source = open_source(EMBEDDINGS, labels=np.zeros(7), class_weights=WEIGHTS)
    assert source.classes == ("0", "1", "2")
    with pytest.raises(DataError, match="at least two classes"):
        open_source(EMBEDDINGS, labels=np.zeros(7))


def test_names_as_labels_need_as_many_rows_in_the_head():
    names = np.array(["c", "a", "b", "c", "a", "b", "b"])
    source = open_source(EMBEDDINGS, labels=names, class_weights=WEIGHTS)
    assert (source.classes, source.label_of(0)) == (("a", "b", "c"), 2)
    with pytest.raises(LabelError, match="name 3 classes, but class_weights has 4 rows; pass"):
        open_source(EMBEDDINGS, labels=names, class_weights=np.eye(4))


def test_non_finite_embeddings_pass_through():
    rows = EMBEDDINGS.copy()
    rows[1, 2], rows[3, 0] = np.nan, np.inf
    np.testing.assert_array_equal(open_source(rows, labels=LABELS).chunk(0, 7), rows)


def test_the_fingerprint_follows_rows_labels_and_head(tmp_path):
    def mark(rows=EMBEDDINGS, labels=LABELS, **options):
        return open_source(rows, labels=labels, **options).fingerprint()

    other = EMBEDDINGS.copy()
    other[3, 1] += 1
    np.save(tmp_path / "e.npy", EMBEDDINGS)
    assert mark() == mark(EMBEDDINGS.copy()) == mark(tmp_path / "e.npy")
    different = [
        mark(), mark(other), mark(labels=LABELS[::-1]), mark(class_weights=WEIGHTS),
        mark(class_weights=WEIGHTS * 2), mark(class_weights=WEIGHTS, bias=BIAS),
    ]  # fmt: skip
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labels": LABELS[:5]}, ShapeError, r"embeddings \[7, 4\], labels \[5\]"),
        ({"labels": LABELS, "class_weights": np.eye(3)}, ShapeError,
         r"the same width D, got embeddings \[7, 4\], class_weights \[3, 3\]"),
        ({"labels": LABELS, "class_weights": WEIGHTS[:2]}, LabelError, r"in \[0, 2\), got 2"),
        ({"labels": LABELS, "class_weights": WEIGHTS, "bias": BIAS[:2]}, ShapeError,
         r"one bias per class, got class_weights \[3, 4\], bias \[2\]"),
        ({"labels": LABELS, "class_weights": WEIGHTS, "classes": ["a", "b"]}, LabelError, "got 2"),
        ({"labels": LABELS % 2, "class_weights": WEIGHTS, "classes": ["a", "b"]}, ShapeError,
         r"one class name per row of class_weights, got 2 names"),
        ({"labels": LABELS, "split": "train"}, OptionError, "holds arrays without splits"),
        ({"labels": LABELS - 1}, LabelError, "got -1 at position 0"),
        ({}, DataError, "holds no labels; pass labels="),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        open_source(EMBEDDINGS, **options)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.zeros((7, 4), dtype=np.int64), ShapeError, r"of floats .* in ndarray, got \[7, 4\]"),
        (np.zeros((7, 0), dtype=np.float32), DataError, "no embeddings"),
        (np.zeros((0, 4), dtype=np.float32), DataError, "no embeddings"),
    ],
)
def test_arrays_that_are_no_embeddings_are_refused(rows, error, message):
    with pytest.raises(error, match=message):
        open_source(rows, labels=LABELS)


GIVEN = {"rows": EMBEDDINGS, "labels": LABELS, "class_weights": WEIGHTS, "bias": BIAS}


def opened(given):
    options = dict(given)
    return open_source(options.pop("rows"), **options)


@pytest.mark.parametrize("part", GIVEN)
def test_arrays_of_the_other_byte_order_are_read_as_their_values(part):
    array = GIVEN[part]
    swapped = array.astype(array.dtype.newbyteorder())
    source = opened(GIVEN | {part: swapped})
    assert_rows(source)
    for found, expected in zip(
        (source.labels, source.class_weights, source.bias), (LABELS, WEIGHTS, BIAS), strict=True
    ):
        np.testing.assert_array_equal(torch.tensor(found).numpy(), expected)


@pytest.mark.parametrize("part", GIVEN)
def test_values_under_a_mask_are_never_read(part):
    array = GIVEN[part]
    mask = np.zeros(array.shape, dtype=bool)
    unmasked = np.ma.array(array, mask=mask)
    assert len(opened(GIVEN | {part: unmasked})) == len(EMBEDDINGS)
    mask[(1,) * array.ndim] = True
    with pytest.raises(DataError, match=rf"1 of {array.size} values of a masked array are masked"):
        opened(GIVEN | {part: np.ma.array(array, mask=mask)})


@pytest.mark.parametrize("part", ["rows", "class_weights", "bias"])
def test_numbers_that_torch_does_not_have_are_refused(part):
    array = GIVEN[part]
    with pytest.raises(ShapeError, match=r"of at most 64 bits.*, got .*complex64"):
        opened(GIVEN | {part: array.astype(np.complex64)})
    longer = array.astype(np.longdouble)
    if longer.dtype.itemsize > 8:  # as it is on most processors
        with pytest.raises(ShapeError, match=r"of at most 64 bits.*, got .*float"):
            opened(GIVEN | {part: longer})


def test_a_head_of_another_width_is_refused_with_what_was_found(tmp_path):
    save_file({"fc.weight": np.zeros((3, 5), np.float32)}, tmp_path / "h.safetensors")
    message = r"class_weights \[C, 4\] with C >= 3 in .*, got fc\.weight \[3, 5\]"
    with pytest.raises(ShapeError, match=message):
        open_source(EMBEDDINGS, labels=LABELS, class_weights=tmp_path / "h.safetensors")


def test_unknown_names_and_files_of_parts_are_refused(tmp_path):
    save_file({"a": WEIGHTS, "b": BIAS}, tmp_path / "h.safetensors")
    with pytest.raises(DataError, match=r"no array 'c' in .*: it holds a \[3, 4\], b \[3\]"):
        open_source(EMBEDDINGS, labels=LABELS, class_weights=f"{tmp_path}/h.safetensors:c")
    with pytest.raises(DataError, match=r"no labels in .*: it holds a \[3, 4\], b \[3\]"):
        open_source(EMBEDDINGS, labels=tmp_path / "h.safetensors")
    (tmp_path / "labels.csv").write_text("1")
    with pytest.raises(OptionError, match=r"expected labels in one of \.npy"):
        open_source(EMBEDDINGS, labels=tmp_path / "labels.csv")
    with pytest.raises(DataError, match=r"no file or folder .*gone\.npy"):
        open_source(EMBEDDINGS, labels=tmp_path / "gone.npy")


class Payload:
    """Leaves a trace if anything unpickles it."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (open, (str(self.trace), "w"))


@pytest.mark.parametrize("kind", ["npy", "npz", "compressed npz", "pt", "plain pickle"])
def test_files_that_would_run_code_are_refused_and_do_not(tmp_path, kind):
    trace = tmp_path / "trace"
    payload = np.array([Payload(trace)] * 2, dtype=object)
    if kind == "npy":
        np.save(file := tmp_path / "e.npy", payload, allow_pickle=True)
    elif "npz" in kind:
        save = np.savez_compressed if kind.startswith("compressed") else np.savez
        save(file := tmp_path / "e.npz", embeddings=payload)
    elif kind == "pt":
        torch.save({"embeddings": Payload(trace)}, file := tmp_path / "e.pt")
    else:
        (file := tmp_path / "e.bin").write_bytes(pickle.dumps(Payload(trace)))
    with pytest.raises(UnsafeFileError, match=r"run.* code"):
        open_source(file, labels=LABELS)
    with pytest.raises(UnsafeFileError, match=r"run.* code"):
        open_source(EMBEDDINGS, labels=LABELS, class_weights=file)
    assert not trace.exists()


def test_a_compressed_array_above_the_limit_is_refused_before_it_is_unpacked(tmp_path):
    # unpacked in full, it would be found to be shorter than its header says
    np.savez_compressed(tmp_path / "a.npz", embeddings=EMBEDDINGS)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        content = archive.read("embeddings.npy").replace(b"(7, 4), }   ", b"(700000000, 4), }")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embeddings.npy", content)
    wanted = r"'embeddings' of .*unpacks to 10.4 GiB, more than 2; store it with np.savez"
    with pytest.raises(DataError, match=wanted):
        open_source(tmp_path / "bomb.npz", labels=LABELS)


def test_an_array_that_lies_about_its_size_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", embeddings=EMBEDDINGS)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        content = archive.read("embeddings.npy").replace(b"(7, 4)", b"(9, 4)")
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        with zipfile.ZipFile(tmp_path / "b.npz", "w", method) as archive:
            archive.writestr("embeddings.npy", content)
        with pytest.raises(DataError, match="truncated"):
            open_source(tmp_path / "b.npz", labels=LABELS).chunk(0, 9)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize("damage", ["empty", "text", "half"])
def test_damaged_files_are_refused(tmp_path, suffix, damage, whole):
    file = tmp_path / f"e{suffix}"
    if suffix == ".npy":
        np.save(file, EMBEDDINGS)
    elif suffix == ".npz":
        np.savez(file, **whole)
    elif suffix == ".safetensors":
        save_file(whole, file)
    else:
        torch.save({name: torch.tensor(part) for name, part in whole.items()}, file)
    content = file.read_bytes()
    file.write_bytes({"empty": b"", "text": b"hello world, not an array" * 9,
                      "half": content[: len(content) // 2]}[damage])  # fmt: skip
    with pytest.raises((DataError, UnsafeFileError), match=r"e\.\w+ (is|cannot)"):
        open_source(file, labels=LABELS)


def test_safetensors_headers_that_point_elsewhere_are_refused(tmp_path):
    def write(header, body=b"\0" * 64):
        text = header.encode()
        (tmp_path / "e.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)

    for header in (
        '{"embeddings": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 32]}}',
        '{"embeddings": {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}}',
        '{"embeddings": {"dtype": "F32", "shape": [400, 4], "data_offsets": [0, 6400]}}',
        '{"embeddings": {"dtype": "F32", "shape": [4611686018427387904, 4], '
        '"data_offsets": [0, 0]}}',
        '{"embeddings": 3}',
        "[]",
    ):
        write(header)
        with pytest.raises(DataError, match=r"e\.safetensors is "):
            open_source(tmp_path / "e.safetensors", labels=LABELS)


def square_head(rows=400, width=6, seed=0):
    """Embeddings near the rows of a square head, labelled by them."""
    draw = np.random.default_rng(seed)
    weights = draw.normal(size=(width, width))
    labels = draw.integers(0, width, rows)
    embeddings = weights[labels] + 0.3 * draw.normal(size=(rows, width))
    return embeddings.astype(np.float32), labels, weights.astype(np.float32)


def test_a_square_head_that_fits_its_labels_is_read_without_a_word():
    embeddings, labels, weights = square_head()
    source = open_source(embeddings, labels=labels, class_weights=weights)
    np.testing.assert_array_equal(source.class_weights, weights)


def test_a_square_head_that_is_transposed_is_refused(tmp_path):
    embeddings, labels, weights = square_head()
    said = r"are square, \[6, 6\], and as given.*sampled labels, and transposed.*class_weights\.T"
    with pytest.raises(ShapeError, match=said):
        open_source(embeddings, labels=labels, class_weights=weights.T)
    np.savez(tmp_path / "x.npz", embeddings=embeddings, labels=labels, class_weights=weights.T)
    with pytest.raises(ShapeError, match=said):
        open_source(tmp_path / "x.npz")


def test_a_square_head_that_may_be_either_way_is_told_of():
    embeddings, _, weights = square_head()
    labels = np.random.default_rng(1).integers(0, 6, len(embeddings))  # of nothing
    with pytest.warns(HardsightWarning, match=r"are read as a row per class, \[C, D\]"):
        open_source(embeddings, labels=labels, class_weights=weights)


def test_a_symmetric_head_is_the_same_either_way():
    embeddings, labels, _ = square_head()
    open_source(embeddings, labels=labels, class_weights=np.eye(6, dtype=np.float32))


def test_a_bias_and_rows_that_are_not_finite_do_not_disturb_the_look_at_a_square_head():
    embeddings, labels, weights = square_head()
    embeddings[::50] = np.nan
    bias = np.full(6, 100.0, dtype=np.float32)
    open_source(embeddings, labels=labels, class_weights=weights, bias=bias)
    with pytest.raises(ShapeError, match=r"class_weights\.T"):
        open_source(embeddings, labels=labels, class_weights=weights.T, bias=bias)
