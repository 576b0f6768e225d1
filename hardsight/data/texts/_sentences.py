"""Sentences for a language model: every token that the model is to predict has its own row."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.data.source import InputKind, Parts, Spread
from hardsight.data.texts._tokens import (
    IDS,
    MASK,
    TRUNCATED,
    Texts,
    check_vocabulary,
    model_inputs,
    most_tokens,
    padded_rows,
    together,
)
from hardsight.errors import ModelError
from hardsight.preprocessing import PLACES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor, nn

UNKNOWN = "unknown"
_DECODER = "decoder_input_ids"
_AT_ONCE = 4  # batches in which sentences are sorted by length together
_TRIED = 8  # rows of a sentence when a model is tried out
_IGNORED = -100  # the label that transformers ignores
_SHARE = 0.9  # share of a model's embeddings that a tokenizer must have tokens for
_BEGINS = {"Ġ": " ", "▁": " ", "Ċ": "\n"}  # how tokenizers write white space inside tokens


@dataclass(frozen=True)
class Sentence:
    """A sentence as tokens.

    Attributes:
        number: number of the sentence in the data.
        given: tokens that the model reads first when it translates; ``None`` for a sentence by
            itself.
        tokens: tokens of the sentence whose tokens are predicted.
        first: position of the first token that has a row; tokens before it are given.
        texts: the text of each token with a row; ``begins`` and all of them together are the
            sentence.
        begins: the text before the first token with a row.
        is_cut: whether the sentence, or what the model reads first, is longer than the model takes.
        row: number of its first row among the rows of all sentences.
    """

    number: int
    given: list[int] | None
    tokens: list[int]
    first: int
    texts: list[str]
    is_cut: bool
    begins: str = ""
    row: int = 0

    def __len__(self) -> int:
        return max(0, len(self.tokens) - self.first)

    @property
    def targets(self) -> list[int]:
        """Tokens that have a row."""
        return self.tokens[self.first :]


class Sentences(Texts):
    """Sentences for which no language model has been named yet."""

    name = "tokens"
    task = "predict"

    def read_for(self, model: Any, reader: Any, *, batch_size: int) -> InputKind:
        """Return the sentences as the tokens that a language model predicts."""
        if reader is None:
            self.collated([])
        return TargetTokens(reader, model, limit=self.limit, batch_size=batch_size)


class TargetTokens(Sentences):
    """The tokens of sentences that a language model predicts, each from all tokens before it.

    A sequence-to-sequence model also reads another sentence first, and predicts from both.

    Args:
        tokenizer: a tokenizer of transformers.
        model: the model that predicts its tokens.
        limit: the largest number of tokens of a sentence; by default, what tokenizer and model
            allow.
        batch_size: number of sentences that go through the model together.

    Attributes:
        classes: the vocabulary; the position of a name is its token id.
        reads_pairs: whether the model reads another sentence first.

    Raises:
        ModelError: the tokenizer does not fit the model, the model predicts no tokens, or nothing
            says which token its decoder starts with.
    """

    batches_at_once = _AT_ONCE

    def __init__(
        self, tokenizer: Any, model: nn.Module, *, limit: int | None = None, batch_size: int = 64
    ) -> None:
        super().__init__(limit)
        self._tokenizer, self._model, self._batch_size = tokenizer, model, batch_size
        self._most: int | None = None
        self.keys, self._pads = model_inputs(tokenizer, model)
        self.keys = tuple(key for key in self.keys if key in (IDS, MASK))
        check_vocabulary(tokenizer, model, least=_SHARE)
        self.reads_pairs = _reads_pairs(model)
        if self.reads_pairs:
            _check_can_shift(model)
        # any token will do: an encoder masks padding, and a decoder meets it after all predictions
        self._padding = int(getattr(tokenizer, "pad_token_id", None) or 0)
        self.limit = most_tokens(tokenizer, model, limit)
        self.classes = _vocabulary(tokenizer, model)
        most = (
            "as long as they are" if self.limit is None else f"at most {self.limit} of a sentence"
        )
        self.origin = f"tokens of {type(tokenizer).__name__}, {most}"

    def encoded(self, targets: list[str], given: list[str] | None, first: int) -> list[Sentence]:
        """Return sentences as tokens, together with the sentences that the model reads first.

        Args:
            targets: sentences whose tokens are predicted.
            given: what the model reads before each target; ``None`` if it reads nothing.
            first: number of the first sentence in the data.
        """
        read = [None] * len(targets) if given is None else self._given(given)
        sentences = []
        special = set(getattr(self._tokenizer, "all_special_ids", ()))
        for at, (tokens, texts) in enumerate(self._targets(targets)):
            known = len(tokens) if self.limit is None else min(len(tokens), self.limit)
            begin = 0 if self.reads_pairs else _given_tokens(tokens, self._tokenizer)
            source, is_cut = read[at] or (None, False)
            pairs = zip(tokens[:begin], texts[:begin], strict=True)
            begins = "".join(text for token, text in pairs if token not in special)
            sentences.append(
                Sentence(
                    first + at,
                    source,
                    tokens[:known],
                    begin,
                    texts[begin:known],
                    is_cut or known < len(tokens),
                    begins,
                )
            )
        return sentences

    def collated(self, contents: list[Any]) -> tuple[Any, Mapping[str, ArrayLike]]:
        """Return the model's inputs with the positions of the rows, and what was noticed."""
        lengths = [(len(one.given or ()), len(one.tokens)) for one in contents]
        # the longest first, so that sentences of similar length share a batch
        order = sorted(range(len(contents)), key=lambda at: (*(-n for n in lengths[at]), at))
        chunks = list(together(order, lengths, self._batch_size, pads=self._pads))
        noticed = self._noticed(contents)
        if len(chunks) == 1:
            return self._inputs(contents), noticed
        inputs = [self._inputs([contents[at] for at in chunk]) for chunk in chunks]
        starts, row = {}, 0
        for at in order:  # where each sentence's rows begin when the parts are put together
            starts[at], row = row, row + self._rows(contents[at])
        firsts = np.array([starts[at] for at in range(len(contents))])
        counts = self._counts(contents)
        sizes = [int(counts[chunk].sum()) for chunk in chunks]
        return Parts(inputs, _ranges(firsts, counts), sizes), noticed

    def spread(self, contents: list[Any]) -> Spread:
        """Return one row for each predicted token."""
        # here, because it takes 50 ms, and the review app loads this package for its first picture
        import pyarrow.compute as pc

        counts = self._counts(contents)
        numbers = np.repeat([one.number for one in contents], counts)
        positions = _ranges(np.array([one.first for one in contents]), counts)
        parts = [pa.array(part).cast(pa.string()) for part in (numbers, positions)]
        return Spread(
            index=_ranges(np.array([one.row for one in contents]), counts),
            ids=pc.binary_join_element_wise(*parts, ":").to_pylist(),
            labels=np.concatenate([self._targets_of(one) for one in contents]),
        )

    def at_once(self, batch_size: int) -> TargetTokens:
        """Return the same input in other batches, with a few rows per sentence, to try a model."""
        other = copy.copy(self)
        other._batch_size, other._most = batch_size, _TRIED
        return other

    def _rows(self, sentence: Sentence) -> int:
        return len(sentence) if self._most is None else min(len(sentence), self._most)

    def _counts(self, sentences: list[Sentence]) -> NDArray[np.int64]:
        return np.array([self._rows(one) for one in sentences], dtype=np.int64)

    def _targets_of(self, sentence: Sentence) -> NDArray[np.int64]:
        """Return the tokens that have a row."""
        end = sentence.first + self._rows(sentence)
        return np.array(sentence.tokens[sentence.first : end], dtype=np.int64)

    def _noticed(self, sentences: list[Sentence]) -> dict[str, NDArray[np.bool_]]:
        """Return by row whether its sentence was cut (first row only) or its token is unknown."""
        counts = self._counts(sentences)
        cut = np.repeat([one.is_cut for one in sentences], counts)
        cut &= _ranges(np.zeros_like(counts), counts) == 0
        labels = np.concatenate([self._targets_of(one) for one in sentences])
        token = getattr(self._tokenizer, "unk_token_id", None)
        return {TRUNCATED: cut, UNKNOWN: labels == (-1 if token is None else token)}

    def _inputs(self, sentences: list[Sentence]) -> dict[str, Tensor]:
        """Return the model's inputs for sentences that go through it together."""
        import torch

        tokens = [one.tokens for one in sentences]
        width = max(map(len, tokens))
        # A token is predicted at the position of the token before it. The inputs of a decoder are
        # already shifted by one.
        step = 0 if self.reads_pairs else 1
        firsts = np.array([row * width + one.first - step for row, one in enumerate(sentences)])
        places = _ranges(firsts, self._counts(sentences))
        read = [one.given or [] for one in sentences] if self.reads_pairs else tokens
        found = {IDS: padded_rows(read, self._padding)}
        if MASK in self.keys:
            found[MASK] = padded_rows([[1] * len(row) for row in read], 0)
        if self.reads_pairs:
            found[_DECODER] = self._shifted(padded_rows(tokens, _IGNORED))
        return {**found, PLACES: torch.from_numpy(places)}

    def _shifted(self, labels: Tensor) -> Tensor:
        model: Any = self._model
        own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if own is not None:  # some models put the language first, so they shift by themselves
            shifted: Tensor = own(labels=labels)
            return shifted
        start = model.config.decoder_start_token_id
        moved = labels.roll(1, dims=1).masked_fill(labels.roll(1, dims=1) < 0, self._padding)
        moved[:, 0] = start
        return moved

    def _given(self, texts: list[str]) -> list[tuple[list[int], bool]]:
        """Return the tokens that the model reads first, and whether they were cut."""
        whole = self._tokenizer(texts, padding=False, verbose=False)[IDS]
        if self.limit is None or all(len(ids) <= self.limit for ids in whole):
            return [(ids, False) for ids in whole]
        # tokenized again, so that the token that ends a sentence stays; the model expects it
        short = self._tokenizer(texts, padding=False, truncation=True, max_length=self.limit)[IDS]
        return [(ids, len(ids) < len(all_)) for ids, all_ in zip(short, whole, strict=True)]

    def _targets(self, texts: list[str]) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the tokens of each target, uncut, and the text of each token."""
        is_fast = bool(getattr(self._tokenizer, "is_fast", False))
        options = {"return_offsets_mapping": True} if is_fast else {}
        key = "text_target" if self.reads_pairs else "text"
        found = self._tokenizer(**{key: texts}, padding=False, verbose=False, **options)
        special = set(getattr(self._tokenizer, "all_special_ids", ()))
        for at, (text, ids) in enumerate(zip(texts, found[IDS], strict=True)):
            spans = found["offset_mapping"][at] if is_fast else [None] * len(ids)
            yield ids, list(_surfaces(text, ids, spans, special, self.classes))


def _surfaces(
    text: str, ids: list[int], spans: Sequence[Any], special: set[int], names: Sequence[str]
) -> Iterator[str]:
    """Yield the text of each token with the space before it, or a special token's name."""
    end = 0
    for token, span in zip(ids, spans, strict=True):
        name = names[token] if token < len(names) else str(token)
        if span is None:
            yield name if token in special else _plain(name)
        elif token in special and span[0] == span[1]:
            yield name
        else:
            yield text[end : span[1]]
            end = max(end, span[1])


def _plain(name: str) -> str:
    """Return a token as text, with its marks for white space replaced."""
    for mark, space in _BEGINS.items():
        name = name.replace(mark, space)
    # "</w>" ends a word in some vocabularies; "##" continues one in BERT's
    return name.removesuffix("</w>") + " " if name.endswith("</w>") else name.removeprefix("##")


def _given_tokens(tokens: list[int], tokenizer: Any) -> int:
    """Return how many tokens a causal model is given: special ones at the start, at least 1."""
    begins = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "cls")} - {None}
    count = 0
    while count < len(tokens) and tokens[count] in begins:
        count += 1
    return max(1, count)


def _ranges(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranges that start at ``firsts`` and have ``counts`` numbers, one after the other.

    Example:
        >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    before = np.concatenate([[0], np.cumsum(counts)[:-1]])
    found: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(firsts - before, counts)
    return found


def _reads_pairs(model: Any) -> bool:
    stated = getattr(getattr(model, "config", None), "is_encoder_decoder", None)
    return _DECODER in inspect.signature(model.forward).parameters if stated is None else stated


def _check_can_shift(model: Any) -> None:
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return
    if getattr(getattr(model, "config", None), "decoder_start_token_id", None) is None:
        raise ModelError(
            f"nothing says which token the decoder of {type(model).__name__} starts with; set "
            "model.config.decoder_start_token_id"
        )


def _vocabulary(tokenizer: Any, model: Any) -> tuple[str, ...]:
    """Return unique names of all outputs; a model may have more outputs than there are tokens."""
    find = getattr(model, "get_output_embeddings", lambda: None)
    weight = getattr(find(), "weight", None)
    spare = max(0, 0 if weight is None else len(weight) - len(tokenizer))
    names = [*tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), *[None] * spare]
    found: dict[str, None] = {}
    for token, name in enumerate(names):
        plain = str(name) if name else f"[{token}]"
        found[plain if plain not in found else f"{plain} [{token}]"] = None
    return tuple(found)
