"""Cases of ``hardsight score`` on texts, whose rows must be those of each text alone."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.cases import Step
from tests.fuzz.draw import Array, Draw
from tests.fuzz.heads import text_of
from tests.fuzz.labels import NAMES
from tests.fuzz.oracle import Expected, Outputs
from tests.fuzz.scoring import scored

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_WORDS = ("the", "film", "is", "a", "warm", "dull", "story", "slow", "fine", "cast", ",", "!")
_VOCABULARY = {word: at for at, word in enumerate((*_SPECIAL, *_WORDS))}
# cells that readers of tables like to take for something else
_ODD = ("NA", "null", "None", "nan", "=1+1", "1", "true", '"the" film', "a,b;c\td", "é 名 film",
        "the\nfilm", " the film ", "#film", "\ufefffilm")  # fmt: skip
_WIDTH = 5


def score_texts(draw: Draw, folder: Path) -> Iterator[Step]:
    """A model of texts on a list of them."""
    limit = draw.pick("texts.limit", (64, 6, 12), plain=0.6)
    texts = _texts(draw)
    labels = _labels(draw, len(texts))
    flags, may = _written(draw, folder, texts, labels.stored)
    _write_tokenizer(folder / "words", limit)
    most = draw.pick("texts.most", (None, 4, 9, 64), plain=0.7)
    flags += [] if most is None else ["--max-tokens", str(most)]
    readable = [at for at, text in enumerate(texts) if text is not None and text.strip()]
    tokens = [_tokens(texts[at], most or limit) for at in readable]
    model = draw.pick("texts.model", list(_MODELS), plain=0.4)
    named, outputs = _MODELS[model](draw, folder, tokens, len(labels.classes))
    expected = Expected(
        readable,
        [str(at) for at in readable],
        labels.indices[readable],
        labels.classes,
        outputs,
        [str(at) for at in range(len(texts)) if at not in readable],
    )
    yield from scored(
        draw, folder, [*flags, *named], expected, must_refuse=labels.must_refuse, may_refuse=may
    )


def _texts(draw: Draw) -> list[str | None]:
    """Four to twelve texts of one to nine words, some of them odd."""
    count = draw.whole("texts.count", 4, 12)
    lengths = draw.bytes_of("texts.lengths", count, high=9) + 1
    words = (*_WORDS, "Film", "unheard")
    texts: list[str | None] = [
        " ".join(words[at] for at in draw.bytes_of(f"texts.{row}", length, high=len(words)))
        for row, length in enumerate(lengths.tolist())
    ]
    texts[0] = "the film"  # not a number, or a column of them would be taken for labels
    for row in range(1, count):
        texts[row] = draw.pick(f"texts.odd {row}", (texts[row], *_ODD, "", " ", None), plain=0.9)
    return texts


@dataclass(frozen=True)
class _Labels:
    stored: list[Any]
    indices: Array
    classes: list[str]
    must_refuse: str = ""


def _labels(draw: Draw, count: int) -> _Labels:
    classes = draw.whole("labels.classes", 2, 4)
    indices = np.array(draw.shuffled("labels.order", [at % classes for at in range(count)]))
    kinds = {
        "names": (list(NAMES), list(NAMES), ""),
        "numbers": ([0, 1, 2, 3], ["0", "1", "2", "3"], ""),
        "from 1": ([1, 2, 3, 4], ["1", "2", "3", "4"], ""),
        "digits": (["0", "1", "2", "3"], ["0", "1", "2", "3"], ""),
        "spaced": ([" ant", "bee ", "cat", "dog"], list(NAMES), ""),
    }
    faults = {
        "twice": (["1", "01", "2", "3"], ["1", "01", "2", "3"], "01 and 1 are one number"),
        "fraction": ([1, 1.5, 2, 3], ["1", "1.5", "2", "3"], "1.5 is not a class"),
        "missing": ([None, "bee", "cat", "dog"], list(NAMES), "a label is missing"),
        "negative": ([-1, 0, 1, 2], ["-1", "0", "1", "2"], "a label is negative"),
    }
    kind = draw.pick("texts.labels", list(kinds), faults=list(faults), plain=0.5)
    values, names, must = {**kinds, **faults}[kind]
    return _Labels([values[at] for at in indices], indices, names[:classes], must)


def _written(
    draw: Draw, folder: Path, texts: list[str | None], labels: list[Any]
) -> tuple[list[str], bool]:
    """Flags of the file of texts, and whether it may be refused."""
    kind = draw.pick("texts.file", ("csv", "jsonl", "parquet", "tsv"), plain=0.4)
    names = draw.pick(
        "texts.columns", (("text", "label"), ("review", "class"), ("words", "mark")), plain=0.6
    )
    flags = ["--data", f"texts.{kind}"]
    if names == ("words", "mark") or draw.chance("texts.name columns", 0.3):
        flags += ["--text-column", names[0], "--label-column", names[1]]
    columns: dict[str, list[Any]] = dict(zip(names, (texts, labels), strict=True))
    if draw.chance("texts.more columns", 0.3):
        columns = {"note": ["film"] * len(texts), **columns}
    if draw.chance("texts.label first", 0.2):
        columns = dict(reversed(columns.items()))
    encoding = draw.pick("texts.encoding", ("utf-8", "utf-8-sig", "utf-16"), plain=0.8)
    file = folder / f"texts.{kind}"
    if kind == "parquet":
        kept = [None if one is None else str(one) for one in columns[names[1]]]
        is_mixed = len({type(one) for one in labels}) > 1
        pq.write_table(pa.table({**columns, names[1]: kept if is_mixed else labels}), file)
        return flags, False
    if kind == "jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = [json.dumps(row, ensure_ascii=draw.chance("texts.escaped", 0.5)) for row in rows]
        file.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    else:
        sink = io.StringIO(newline="")
        writer = csv.writer(sink, delimiter="\t" if kind == "tsv" else ",")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
        file.write_bytes(sink.getvalue().encode(encoding))
    return flags, encoding == "utf-16"


# --- the tokenizer, and the same in Python


def _write_tokenizer(folder: Path, limit: int) -> None:
    tokens = [
        {"id": at, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for at, word in enumerate(_SPECIAL)
    ]  # fmt: skip
    ends = [{"SpecialToken": {"id": word, "type_id": 0}} for word in ("[CLS]", "[SEP]")]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                word: {"id": word, "ids": [_VOCABULARY[word]], "tokens": [word]}
                for word in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": _VOCABULARY, "unk_token": "[UNK]"},
    }
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": limit,
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def _tokens(text: str | None, limit: int) -> list[int]:
    assert text is not None
    words = re.findall(r"\w+|[^\w\s]+", text.lower())
    numbers = [_VOCABULARY.get(word, _VOCABULARY["[UNK]"]) for word in words]
    return [2, *numbers[: limit - 2], 3]


# --- models


_NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding.from_pretrained({words})
        self.head = nn.Linear({width}, {classes})
        self.head.weight.data.copy_({weight})
        self.head.bias.data.copy_({bias})

    def forward(self, {arguments}):
{forward}
        return self.head(torch.tanh(h))


make = Net
"""
_FORWARDS = {
    "masked mean": (
        "input_ids, attention_mask",
        ["mask = attention_mask[..., None]",
         "h = (self.words(input_ids) * mask).sum(1) / mask.sum(1)"],
        lambda rows: rows.mean(axis=0),
    ),
    "last token": (
        "input_ids, attention_mask",
        ["last = attention_mask.sum(1) - 2",  # before [SEP]
         "h = self.words(input_ids)[torch.arange(len(last)), last]"],
        lambda rows: rows[-2],
    ),
    "no mask": (
        "input_ids", ["h = self.words(input_ids).mean(1)"], lambda rows: rows.mean(axis=0)
    ),
    "swallows the mask": (
        "input_ids, **more", ["h = self.words(input_ids).mean(1)"],
        lambda rows: rows.mean(axis=0),
    ),
}  # fmt: skip


def _net(kind: str) -> Callable[[Draw, Path, list[list[int]], int], tuple[list[str], Outputs]]:
    arguments, lines, pooled = _FORWARDS[kind]

    def made(
        draw: Draw, folder: Path, tokens: list[list[int]], classes: int
    ) -> tuple[list[str], Outputs]:
        words = draw.weights("texts.embedding", len(_VOCABULARY), _WIDTH)
        weight = draw.weights("texts.weight", classes, _WIDTH)
        weight[:, 0] += np.arange(classes) / 8 + 1 / 32
        bias = draw.weights("texts.bias", classes)
        (folder / "net.py").write_text(
            _NET.format(
                words=text_of(words), width=_WIDTH, classes=classes, weight=text_of(weight),
                bias=text_of(bias), arguments=arguments,
                forward="\n".join(" " * 8 + line for line in lines),
            )
        )  # fmt: skip
        features = np.tanh([pooled(words[row]) for row in tokens])
        outputs = Outputs(
            features @ weight.T + bias, features, weight, np.linalg.norm(features, axis=1) + 1
        )
        return ["--model", "net.py:make", "--tokenizer", "words"], outputs

    return made


def _transformer(
    kind: str,
) -> Callable[[Draw, Path, list[list[int]], int], tuple[list[str], Outputs]]:
    """A model of transformers as its config makes it; the oracle is float64, text by text."""

    def made(
        draw: Draw, folder: Path, tokens: list[list[int]], classes: int
    ) -> tuple[list[str], Outputs]:
        import torch

        from tests._texts import network

        model = network(kind, len(_VOCABULARY), classes=classes, named=False)
        model.save_pretrained(folder / "words")
        head = model.score if hasattr(model, "score") else model.classifier
        features, logits = [], []
        handle = head.register_forward_hook(lambda _m, args, _out: features.append(args[0]))
        with torch.inference_mode():
            model = model.double()
            for row in tokens:
                logits.append(model(input_ids=torch.tensor([row])).logits[0].numpy())
                features[-1] = features[-1].reshape(-1, features[-1].shape[-1])[-1].numpy()
        handle.remove()
        entered = np.stack(features)
        outputs = Outputs(
            np.stack(logits), entered, head.weight.detach().numpy(),
            4 * np.linalg.norm(entered, axis=1) + 1,
        )  # fmt: skip
        return ["--model", "hf:words"], outputs

    return made


_MODELS = {
    **{kind: _net(kind) for kind in _FORWARDS},
    **{kind: _transformer(kind) for kind in ("distilbert", "bert", "gpt2")},
}
