"""Texts as inputs: tokens of a model's own tokenizer, with as little padding as possible.

A row of the table must not depend on the other texts of its batch. Therefore texts of similar
length go through the model together, padding is always on the right and masked, and every result is
put back in the place of its text.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight._checks import warn
from hardsight.data.source import InputKind, Parts
from hardsight.errors import BadExampleError, ModelError, OptionError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor, nn

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
TRUNCATED = "truncated"
_TRIED = 16  # tokens of a text when a model is tried out
_SHOWN = 280  # characters of a text in a gallery
_AT_ONCE = 16  # batches that are sorted by length together
# A larger limit means none: tokenizers without a limit of their own state a huge number.
_ENDLESS = 10**6


class Texts(InputKind):
    """Texts without a model: they can be shown, but not yet put into batches.

    Args:
        limit: the largest number of tokens of a text that a model sees; ``None`` uses the model's
            own limit.
    """

    name = "text"
    in_processes = False
    has_words = True

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        if limit is not None and limit < 1:
            raise OptionError(f"expected max_tokens to be 1 or more, got {limit}")

    def collated(self, contents: list[Any]) -> tuple[Any, Mapping[str, ArrayLike]]:
        """Raise, because nothing says what the tokens are."""
        raise ModelError(
            "texts need a tokenizer, and the model brings none; name a model with one, "
            "hf:FOLDER, or pass tokenizer= (--tokenizer), the folder of one"
        )

    def small(self, content: Any) -> str:
        """Return the first words."""
        words = " ".join(str(content).split())
        return words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"

    def large(self, content: Any) -> str:
        """Return the whole text."""
        return str(content)

    def read_for(self, model: Any, reader: Any, *, batch_size: int) -> InputKind:
        """Return the kind of input that this model's tokenizer makes, within the model's limit."""
        if reader is None:
            self.collated([])
        return Tokens(reader, model, limit=self.limit, batch_size=batch_size)


class Tokens(Texts):
    """Texts read by the tokenizer of a model.

    Args:
        tokenizer: a tokenizer of transformers.
        model: the model that takes its tokens.
        limit: the largest number of tokens of a text; by default, what tokenizer and model allow.
        batch_size: number of texts that go through the model together.

    Attributes:
        limit: the largest number of tokens of a text; longer texts are cut and counted.
        keys: names of the model's inputs.

    Raises:
        ModelError: the tokenizer does not fit the model, or has no padding token.
        OptionError: the limit is beyond what the model takes.
    """

    batches_at_once = _AT_ONCE

    def __init__(
        self, tokenizer: Any, model: nn.Module, *, limit: int | None = None, batch_size: int = 64
    ) -> None:
        super().__init__(limit)
        self._tokenizer, self._batch_size = tokenizer, batch_size
        self.keys, self._pads = model_inputs(tokenizer, model)
        check_vocabulary(tokenizer, model)
        self._padding = _padding(tokenizer, model) if self._pads else 0
        self.limit = most_tokens(tokenizer, model, limit)
        most = "as long as they are" if self.limit is None else f"at most {self.limit} of a text"
        self.origin = f"tokens of {type(tokenizer).__name__}, {most}"

    def collated(self, contents: list[Any]) -> tuple[Any, dict[str, list[bool]]]:
        """Return tensors by the names of the model's inputs, and which texts were cut."""
        rows, cut = self.encoded(contents)
        lengths = [len(row[IDS]) for row in rows]
        order = sorted(range(len(rows)), key=lambda at: (-lengths[at], at))  # the longest first
        chunks = list(together(order, lengths, self._batch_size, pads=self._pads))
        place = {at: number for number, at in enumerate(order)}
        if len(chunks) == 1:
            return self.padded([rows[at] for at in range(len(rows))]), {TRUNCATED: cut}
        inputs = [self.padded([rows[at] for at in chunk]) for chunk in chunks]
        places, sizes = [place[at] for at in range(len(rows))], [len(chunk) for chunk in chunks]
        return Parts(inputs, places, sizes), {TRUNCATED: cut}

    def at_once(self, batch_size: int) -> Tokens:
        """Return the same input, cut short and in batches of another size, to try a model on.

        What is tried, such as finding the head or checking the padding, does not depend on the
        length, and long texts would take most of the time on a small dataset.
        """
        other = copy.copy(self)
        other._batch_size = batch_size
        other.limit = min(_TRIED, self.limit or _TRIED)
        return other

    def padded_twice(self, inputs: Any) -> tuple[Any, Any] | None:
        """Return the first tokens of the texts twice: cut off, and followed by padding.

        A model that ignores padding computes the same for both. No row gets wider than it was,
        because the model may have no positions for more tokens.
        """
        width = inputs[IDS].shape[1]
        if not self._pads or width < 2:
            return None
        kept = width - max(1, width // 4)
        short = {key: rows[:, :kept].clone() for key, rows in inputs.items()}
        long = {key: rows.clone() for key, rows in inputs.items()}
        for key, rows in long.items():
            rows[:, kept:] = self._padding if key == IDS else 0
        return short, long

    def without_padding(self) -> Tokens:
        """Return the same input without padding; only texts of equal length share a batch."""
        other = copy.copy(self)
        other._pads, other.origin = False, f"{self.origin}, none of them padded"
        return other

    def packed(self, contents: list[Any]) -> tuple[Tensor, int]:
        """Return all texts as one tensor ``[N, K, L]``; K are the model's inputs, ids first."""
        import torch

        # an unreadable text keeps its row, so it gets a placeholder that has a token
        rows, cut = self.encoded(["." if text is None else str(text) for text in contents])
        found = self.padded(rows)
        return torch.stack([found[key] for key in self.keys], dim=1).to(torch.int32), sum(cut)

    def unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the model.

        On a CPU, columns that are padding in every row of a batch are left out. A GPU may record
        the training step, and a recorded step needs constant shapes.
        """
        rows = rows.long()
        if MASK in self.keys and rows.device.type == "cpu":
            rows = rows[:, :, : int(rows[:, self.keys.index(MASK)].sum(dim=1).max())]
        return {key: rows[:, at] for at, key in enumerate(self.keys)}

    def encoded(self, texts: list[str]) -> tuple[list[dict[str, list[int]]], list[bool]]:
        """Return the tokens of each text, by input name, and whether the text was cut.

        Raises:
            BadExampleError: a text has no tokens.
        """
        whole = self._called(texts)
        cut = [self.limit is not None and len(row[IDS]) > self.limit for row in whole]
        # tokenized again instead of sliced, because the tokenizer puts special tokens at the end
        if any(cut):
            long = [text for text, is_cut in zip(texts, cut, strict=True) if is_cut]
            shorter = iter(self._called(long, truncation=True, max_length=self.limit))
            whole = [
                next(shorter) if is_cut else row for row, is_cut in zip(whole, cut, strict=True)
            ]
        for text, row in zip(texts, whole, strict=True):
            if not row[IDS]:
                raise BadExampleError(f"the tokenizer finds no tokens in {text[:40]!r}")
        return whole, cut

    def padded(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        """Return rows of equal width, ``[B, L]`` for every input; padding is on the right."""
        fills = {IDS: self._padding, MASK: 0, TYPES: 0}
        return {key: padded_rows([row[key] for row in rows], fills[key]) for key in self.keys}

    def _called(self, texts: list[str], **options: Any) -> list[dict[str, list[int]]]:
        found = self._tokenizer(
            texts, padding=False, return_attention_mask=True, verbose=False,
            return_token_type_ids=TYPES in self.keys, **options,
        )  # fmt: skip
        zeros = [[0] * len(ids) for ids in found[IDS]]
        ones = [[1] * len(ids) for ids in found[IDS]]
        columns = {IDS: found[IDS], MASK: ones, TYPES: found.get(TYPES, zeros)}
        return [{key: columns[key][at] for key in self.keys} for at in range(len(texts))]


def padded_rows(rows: list[list[int]], fill: int) -> Tensor:
    """Return rows of tokens as one tensor ``[B, L]``, filled on the right to the longest row."""
    import torch

    array = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for at, row in enumerate(rows):
        array[at, : len(row)] = row
    return torch.from_numpy(array)


def together(
    order: Sequence[int], sizes: Sequence[object], most: int, *, pads: bool
) -> Iterator[list[int]]:
    """Yield the positions of texts that go through the model together.

    Args:
        order: the positions, in the order they are processed.
        sizes: sizes of the texts, by position; without padding, only equal sizes share a batch.
        most: the largest number of texts in a batch.
        pads: whether texts may be padded to a common size.
    """
    chunk: list[int] = []
    for at in order:
        is_other = not pads and chunk and sizes[at] != sizes[chunk[0]]
        if is_other or len(chunk) == most:
            yield chunk
            chunk = []
        chunk.append(at)
    if chunk:
        yield chunk


def model_inputs(tokenizer: Any, model: nn.Module) -> tuple[tuple[str, ...], bool]:
    """Return the input names that both know, and whether the model can be told about padding."""
    taken = inspect.signature(model.forward).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    if IDS not in taken and not takes_all:
        raise ModelError(
            f"expected a model that takes {IDS}, got {type(model).__name__}"
            f"({', '.join(taken)}); name its input {IDS}, and {MASK} for what is not padding"
        )
    made = set(getattr(tokenizer, "model_input_names", (IDS, MASK)))
    # a model that accepts any keyword is not given token types, which few models know
    has_mask = MASK in taken or takes_all
    keys = [IDS, *([MASK] if has_mask else []), *([TYPES] if TYPES in made & set(taken) else [])]
    return tuple(keys), has_mask


def warn_of_other_words(reader: Any, own: Any) -> None:
    """Warn if a tokenizer assigns other words to token ids than the model's own tokenizer does.

    Args:
        reader: the tokenizer in use.
        own: the tokenizer stored with the model; ``None`` if there is none.
    """
    if own is None or reader is own or not all(hasattr(it, "get_vocab") for it in (reader, own)):
        return
    mine, given = own.get_vocab(), reader.get_vocab()
    other = [word for word, number in mine.items() if given.get(word) != number]
    if other:
        has = f"number {given[other[0]]}" if other[0] in given else "not there"
        warn(
            f"the tokenizer that was named is not the model's own: {len(other):,} of its "
            f"{len(mine):,} tokens have another number or none, such as {other[0]!r}, which is "
            f"number {mine[other[0]]} for the model and {has} in {type(reader).__name__}; the "
            "model sees other words than the texts hold, unless it was trained with this tokenizer"
        )


def check_vocabulary(tokenizer: Any, model: nn.Module, *, least: float = 0.0) -> None:
    """Raise if a tokenizer cannot be the tokenizer of a model.

    Args:
        tokenizer: a tokenizer of transformers.
        model: the model that takes its tokens.
        least: share of the model's embeddings for which there must be tokens.

    Raises:
        ModelError: there are more tokens than embeddings, or far fewer.
    """
    rows, is_sure = _embeddings(model)
    if rows is None:
        return
    if is_sure and len(tokenizer) < least * rows:
        raise ModelError(
            f"the tokenizer has {len(tokenizer):,} tokens, and {type(model).__name__} embeddings "
            f"for {rows:,}, most of which it could never use: it is not the tokenizer of this "
            "model; name its own"
        )
    if len(tokenizer) <= rows:
        return
    if is_sure:
        raise ModelError(
            f"the tokenizer has {len(tokenizer):,} tokens, and {type(model).__name__} embeddings "
            f"for {rows:,}: it is not the tokenizer of this model; name its own"
        )
    warn(
        f"the tokenizer has {len(tokenizer):,} tokens, and the largest embedding of "
        f"{type(model).__name__} is for {rows:,}: unless the model makes something else of larger "
        "numbers, such as their remainder, it is not the tokenizer of this model"
    )


def _embeddings(model: nn.Module) -> tuple[int | None, bool]:
    """Return the number of token embeddings, and whether the model itself names their layer."""
    from torch import nn

    try:  # transformers models without such a layer raise either of these
        layer = model.get_input_embeddings()  # type: ignore[operator]
    except (NotImplementedError, AttributeError):
        layer = None
    if layer is not None and isinstance(rows := getattr(layer, "num_embeddings", None), int):
        return rows, True
    sizes = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
    return max(sizes, default=None), False


def _padding(tokenizer: Any, model: Any) -> int:
    """Return the padding token: the model's, since it may look for it, else the tokenizer's.

    Raises:
        ModelError: one of the two has none.
    """
    own = getattr(tokenizer, "pad_token_id", None)
    config = getattr(model, "config", None)
    knows = hasattr(config, "pad_token_id")
    wanted = getattr(config, "pad_token_id", None)
    if own is None or (knows and wanted is None):
        who = "the tokenizer" if own is None else "the config"
        raise ModelError(
            f"{who} of {type(model).__name__} has no padding token, so texts of different length "
            "cannot share a batch; set one, tokenizer.pad_token = tokenizer.eos_token, and "
            "the model's, model.config.pad_token_id = tokenizer.pad_token_id, and save both"
        )
    return int(wanted if wanted is not None else own)


def most_tokens(tokenizer: Any, model: Any, limit: int | None) -> int | None:
    """Return the largest number of tokens of a text that tokenizer, model and user allow."""
    config = getattr(model, "config", None)
    places = getattr(config, "max_position_embeddings", None)
    # these models start counting positions after the padding token's id
    if isinstance(places, int) and getattr(config, "model_type", "") in _SHIFTED:
        places -= int(getattr(config, "pad_token_id", 1) or 0) + 1
    own = getattr(tokenizer, "model_max_length", None)
    known = [most for most in (own, places) if isinstance(most, int) and 0 < most < _ENDLESS]
    if limit is None:
        return min(known, default=None)
    if isinstance(places, int) and limit > places > 0:
        raise OptionError(
            f"max_tokens = {limit} is more than the {places} positions of "
            f"{type(model).__name__}; leave it out, or pass at most {places}"
        )
    return limit


# models that start counting positions after the id of the padding token
_SHIFTED = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
