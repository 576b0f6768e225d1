"""Small labelled data in every stored form, and decisions about it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from safetensors.numpy import save_file

from hardsight.data import open_source
from hardsight.patch import COLUMNS, Patch

CLASSES = ("ant", "bee", "cat")
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
PIXELS = np.arange(12 * 4 * 4, dtype=np.uint8).reshape(12, 4, 4)


def png(number):
    sink = io.BytesIO()
    Image.fromarray(PIXELS[number]).save(sink, "PNG")
    return sink.getvalue()


def folder(place):
    for number, label in enumerate(LABELS):
        file = place / "photos" / CLASSES[label] / "nested" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
    return place / "photos", {}


def split_folder(place):
    for split in ("train", "test"):
        folder(place / split)
        (place / "both").mkdir(exist_ok=True)
        (place / split / "photos").rename(place / "both" / split)
    return place / "both", {"split": "train"}


def _pictures(place):
    (place / "pictures").mkdir(exist_ok=True)
    for number in range(len(LABELS)):
        (place / "pictures" / f"{number}.png").write_bytes(png(number))


def named_list(place):
    _pictures(place)
    rows = [f"pictures/{n}.png;{CLASSES[label]};=note {n}" for n, label in enumerate(LABELS)]
    (place / "list.csv").write_text("\n".join(["path;label;note", *rows]) + "\n")
    return place / "list.csv", {}


def numbered_list_of_a_split(place):
    _pictures(place)
    rows = [f"pictures/{n}.png,{label},train" for n, label in enumerate(LABELS)]
    rows[::1] = [row for pair in zip(rows, ["pictures/0.png,2,test"] * 12) for row in pair]  # noqa: B905
    text = "\ufeffpath,label,split\r\n" + "\r\n".join(rows) + "\r\n"
    (place / "list.csv").write_text(text, newline="")
    return place / "list.csv", {"split": "train"}


def _image_table(numbers):
    about = {"info": {"features": {
        "image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"},
    }}}  # fmt: skip
    rows = pa.table({
        "image": [{"bytes": png(n), "path": f"{n}.png"} for n in numbers],
        "label": LABELS[numbers], "more": [f"row {n}" for n in numbers],
    })  # fmt: skip
    return rows.replace_schema_metadata({"huggingface": json.dumps(about)})


def parquet(place):
    pq.write_table(_image_table(np.arange(12)), place / "data.parquet", row_group_size=5)
    return place / "data.parquet", {}


def parquet_folder(place):
    (place / "shards").mkdir()
    pq.write_table(_image_table(np.arange(5)), place / "shards" / "train-0.parquet")
    pq.write_table(_image_table(np.arange(5, 12)), place / "shards" / "train-1.parquet")
    pq.write_table(_image_table(np.arange(3, 9)), place / "shards" / "test-0.parquet")
    return place / "shards", {"split": "train"}


def parquet_of_paths(place):
    _pictures(place)
    names = [CLASSES[label] for label in LABELS]
    rows = pa.table({"path": [f"pictures/{n}.png" for n in range(12)], "label": names})
    pq.write_table(rows, place / "paths.parquet")
    return place / "paths.parquet", {}


def parquet_embeddings(place):
    rows = pa.table({"embedding": _vectors().tolist(), "label": LABELS.astype(float)})
    pq.write_table(rows, place / "vectors.parquet")
    return place / "vectors.parquet", {}


def _vectors():
    return np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)


def npz(place):
    np.savez(place / "data.npz", images=PIXELS, labels=LABELS.astype(np.uint8), about="a note")
    return place / "data.npz", {}


def packed_npz_of_names(place):
    names = np.array(CLASSES)[LABELS]
    np.savez_compressed(place / "data.npz", x=PIXELS, y=names, ids=[f"=id {n}" for n in range(12)])
    return place / "data.npz", {}


def one_hot_npz(place):
    np.savez(place / "data.npz", images=PIXELS, labels=np.eye(3)[LABELS])
    return place / "data.npz", {}


def npz_embeddings(place):
    head = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    np.savez(place / "e.npz", embeddings=_vectors(), labels=LABELS, class_weights=head)
    return place / "e.npz", {}


def safetensors(place):
    arrays = {"images": PIXELS, "labels": LABELS.astype(np.int32), "scale": np.ones(3)}
    save_file(arrays, place / "data.safetensors", metadata={"made": "by hand"})
    return place / "data.safetensors", {}


def npy_with_labels(place):
    np.save(place / "vectors.npy", _vectors())
    np.save(place / "labels.npy", LABELS[:, None].astype(np.int16))
    return place / "vectors.npy", {"labels": str(place / "labels.npy")}


def labels_in_safetensors(place):
    np.save(place / "pictures.npy", PIXELS)
    save_file({"other": np.ones(2), "mine": LABELS}, place / "labels.safetensors")
    return place / "pictures.npy", {"labels": f"{place / 'labels.safetensors'}:mine"}


def _idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def idx_folder(place):
    (place / "idx").mkdir()
    labels = LABELS.astype(np.uint8)
    for word, packed in (("train", True), ("t10k", False)):
        for name, array in (("images-idx3", PIXELS), ("labels-idx1", labels)):
            file, content = place / "idx" / f"{word}-{name}-ubyte", _idx(array)
            if packed:
                file = file.with_name(file.name + ".gz")
                content = gzip.compress(content)
            file.write_bytes(content)
    return place / "idx", {"split": "train"}


def idx_file(place):
    root, _ = idx_folder(place)
    return root / "t10k-images-idx3-ubyte", {}


TEXTS = [f'text {n}, with "quotes",\nof two lines' for n in range(12)]


def texts(place):
    frame = pd.DataFrame({"note": range(12), "text": TEXTS, "label": np.array(CLASSES)[LABELS]})
    frame.to_csv(place / "texts.csv", index=False)
    return place / "texts.csv", {}


def texts_of_other_columns(place):
    stars = [str(label + 1) for label in LABELS]  # counted from 1, as stars are
    frame = pd.DataFrame({"stars": stars, "review": TEXTS, "label": ["x"] * 12})
    frame.to_csv(place / "texts.tsv", index=False, sep="\t")
    names = {"text_column": "review", "label_column": "stars", "classes": ["1", "2", "3"]}
    return place / "texts.tsv", names


def lines_of_a_split(place):
    rows = [{"text": text, "label": CLASSES[label], "split": "train", "more": {"n": [1]}}
            for text, label in zip(TEXTS, LABELS, strict=True)]  # fmt: skip
    rows = [row for pair in zip(rows, [{"text": "ß", "label": "ant", "split": "test"}] * 12,
                                strict=True) for row in pair]  # fmt: skip
    text = "\n\n".join(json.dumps(row) for row in rows)
    (place / "texts.jsonl").write_text(text, encoding="utf-8")
    return place / "texts.jsonl", {"split": "train"}


def parquet_texts(place):
    rows = pa.table({"text": TEXTS, "label": [CLASSES[label] for label in LABELS]})
    pq.write_table(rows, place / "texts.parquet", row_group_size=5)
    return place / "texts.parquet", {}


FORMS = (
    folder, split_folder, named_list, numbered_list_of_a_split, parquet, parquet_folder,
    parquet_of_paths, parquet_embeddings, npz, packed_npz_of_names, one_hot_npz, npz_embeddings,
    safetensors, npy_with_labels, labels_in_safetensors, idx_folder, idx_file, texts,
    texts_of_other_columns, lines_of_a_split, parquet_texts,
)  # fmt: skip
APART = (npy_with_labels, labels_in_safetensors)  # labels in a file of their own


def out_for(data, options, place):
    """Where a copy of the data may go, and how it is opened there: ``(out, data, options)``."""
    (place / "elsewhere").mkdir(exist_ok=True)
    if "labels" in options:
        file, _, name = options["labels"].partition(":")
        out = place / "elsewhere" / ("fixed" + file[file.rindex(".") :])
        return out, data, {"labels": f"{out}:{name}" if name else str(out)}
    if data.is_dir():
        return place / "fixed", place / "fixed", options
    if "idx" in data.name:
        return place / "fixed", place / "fixed" / data.name, options
    out = place / "elsewhere" / f"fixed{data.suffix}"
    return out, out, options


def patch_for(source, new, *, unsure=(), dropped=(), reviewer="anna", **columns):
    """Decisions about a source: by position, the class that an example is given."""
    names = source.classes
    rows = []
    for position, label in {**new, **dict.fromkeys([*unsure, *dropped], -1)}.items():
        old = int(source.labels[position])
        verdict = "keep" if label == old else "relabel"
        if label < 0:
            verdict = "drop" if position in dropped else "cannot tell"
        named = names[label] if 0 <= label < len(names) else "" if label < 0 else f"new {label}"
        rows.append({
            "index": position, "id": source.id_of(position), "old": old, "old_name": names[old],
            "new": label, "new_name": named, "verdict": verdict, "reviewer": reviewer,
            "time": "2026-01-02T03:04:05+00:00", "reason": "=it looks odd", "evidence": "avh",
            "data": source.fingerprint(), **columns,
        })  # fmt: skip
    return Patch(pd.DataFrame(rows, columns=list(COLUMNS)))


def hashes(place):
    """What every file below a folder holds, and when it was changed."""
    return {
        file.relative_to(place).as_posix(): (
            hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns,
        )
        for file in sorted(place.rglob("*")) if file.is_file()
    }  # fmt: skip


def contents(source):
    """What identifies every example, whatever it is called: its pixels or its vector."""
    if hasattr(source, "chunk"):
        return [row.tobytes() for row in source.chunk(0, len(source))]
    contents = [source[at].content for at in range(len(source))]
    if all(isinstance(content, str) for content in contents):
        return [content.encode() for content in contents]
    return [np.asarray(content).tobytes() for content in contents]


def opened(data, options):
    return open_source(data, **options)
