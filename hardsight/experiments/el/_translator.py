"""An encoder-decoder Transformer for translation: subwords, batches, training and decoding."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight._checks import require
from hardsight.data.formats import text_lines
from hardsight.data.texts import padded_rows
from hardsight.errors import DataError, MissingDataError, NonFiniteError
from hardsight.losses import encouraging_loss
from hardsight.run.loop import seed_of, seeded
from hardsight.tracking import GradientNorms

MADE_UP = "numbers"
PAD, END, UNKNOWN = 0, 1, 2
_IGNORED = -100
_FEATURE = "experiment el-translation"
_GERMAN = ["null", "eins", "zwei", "drei", "vier", "fuenf", "sechs", "sieben", "acht", "neun"]
_ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_THINGS = (("hunde", "dogs"), ("katzen", "cats"), ("kinder", "children"), ("autos", "cars"))
_KINDS = (("rote", "red"), ("kleine", "small"), ("alte", "old"), ("schnelle", "fast"))


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, line by line."""

    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        return len(self.source)

    def first(self, count: int | None) -> Pairs:
        """Some of them, or all."""
        return Pairs(self.source[:count], self.target[:count])


@dataclass(frozen=True)
class Corpus:
    """Pairs to train on, to choose by and to judge by."""

    train: Pairs
    validation: Pairs
    test: Pairs

    def limited(self, limit: int | None, held_out: int | None) -> Corpus:
        """The first pairs of each part."""
        return Corpus(
            self.train.first(limit), self.validation.first(held_out), self.test.first(held_out)
        )


def parallel_text(
    name: str, root: str | None, *, languages: tuple[str, str], splits: tuple[str, str, str]
) -> Corpus:
    """Parallel text files of a folder: ``SPLIT.LANGUAGE``, plain or gzipped.

    Args:
        name: of the folder below the data root, or ``numbers``, which is made up.
        root: folder above it.
        languages: endings of the files, what is translated first.
        splits: names of the files to train on, to choose by and to judge by.

    Raises:
        MissingDataError: there is no such folder or file.
        DataError: two files have different numbers of lines, or a line without text.
    """
    if name == MADE_UP:
        return made_up_pairs()
    roots = (root, os.environ.get("HARDSIGHT_DATA"), "data", ".")
    folders = [Path(place).expanduser() / name for place in roots if place]
    folder = next((place for place in folders if place.is_dir()), None)
    if folder is None:
        raise MissingDataError(
            f"no folder {name} of parallel text below {folders[0].parent}; put files there such as "
            f"{splits[0]}.{languages[0]} and {splits[0]}.{languages[1]}, or pass --data-root"
        )
    return Corpus(*(_pairs(folder, split, languages) for split in splits))


def _pairs(folder: Path, split: str, languages: tuple[str, str]) -> Pairs:
    sides = []
    for language in languages:
        names = (f"{split}.{language}", f"{split}.{language}.gz")
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None:
            raise MissingDataError(f"no file {names[0]} or {names[1]} in {folder}")
        sides.append([line.strip() for line in text_lines(file, str(file))])
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{split}.{languages[0]} has {len(sides[0]):,} lines and {split}.{languages[1]} "
            f"{len(sides[1]):,} in {folder}: line n of one must be the translation of line n"
        )
    kept = [at for at, pair in enumerate(zip(*sides, strict=True)) if all(pair)]
    return Pairs(*([side[at] for at in kept] for side in sides))


def made_up_pairs(count: int = 500, seed: int = 0) -> Corpus:
    """Numbers and things in words of two languages, for a run without data.

    The order of the last two words is that of the other language.
    """
    draw = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        digits = draw.integers(10, size=int(draw.integers(1, 5))).tolist()
        thing, kind = _THINGS[draw.integers(4)], _KINDS[draw.integers(4)]
        source = [*(_GERMAN[digit] for digit in digits), thing[0], kind[0]]
        target = [*(_ENGLISH[digit] for digit in digits), kind[1], thing[1]]
        pairs.append((" ".join(source), " ".join(target)))
    cuts = (0, count - 80, count - 40, count)
    parts = [pairs[a:b] for a, b in pairwise(cuts)]
    return Corpus(*(Pairs([s for s, _ in part], [t for _, t in part]) for part in parts))


class Subwords:
    """A joint sentencepiece vocabulary (byte pairs) of both languages.

    Args:
        texts: to find it in; training text alone.
        size: of the vocabulary, or fewer if the text has not as many.
    """

    def __init__(self, texts: Sequence[str], size: int) -> None:
        pieces = require("sentencepiece", extra="translation", feature=_FEATURE)
        sink = io.BytesIO()
        pieces.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=sink, vocab_size=size, model_type="bpe",
            pad_id=PAD, eos_id=END, unk_id=UNKNOWN, bos_id=-1, character_coverage=1.0,
            hard_vocab_limit=False, num_threads=1, minloglevel=2,
        )  # fmt: skip
        self._processor = pieces.SentencePieceProcessor(model_proto=sink.getvalue())

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def encoded(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """Subwords of each text, with the token that ends a sentence; longer ones are cut."""
        found = self._processor.encode(list(texts), out_type=int)
        return [[*ids[: most - 1], END] for ids in found]

    def decoded(self, rows: Tensor) -> list[str]:
        """Texts of rows of subwords, up to where each ends."""
        texts = []
        for row in rows.tolist():
            whole = row[1:]  # behind the token that a decoder starts with
            ids = whole[: whole.index(END)] if END in whole else whole
            texts.append(str(self._processor.decode([one for one in ids if one != PAD])))
        return texts


def translator(size: int, setting: Any) -> nn.Module:
    """A Marian network with random weights: post-norm, all embeddings shared, no bias but zero."""
    transformers = require("transformers", extra="translation", feature=_FEATURE)
    config = transformers.MarianConfig(
        vocab_size=size, d_model=setting.width, encoder_layers=setting.layers,
        decoder_layers=setting.layers, encoder_attention_heads=setting.heads,
        decoder_attention_heads=setting.heads, encoder_ffn_dim=setting.inner,
        decoder_ffn_dim=setting.inner, dropout=setting.dropout, attention_dropout=0.0,
        activation_dropout=0.0, activation_function="relu", scale_embedding=True,
        max_position_embeddings=setting.most_tokens + 1, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=PAD, forced_eos_token_id=None, bos_token_id=None,
        # scaled by the root of the width, embeddings are then as large as what says the position
        init_std=setting.width**-0.5,
    )  # fmt: skip
    model: nn.Module = transformers.MarianMTModel(config)
    return model


@dataclass(frozen=True)
class Loss:
    """Cross-entropy, or Encouraging Loss with its LE; each with or without label smoothing."""

    log_end: float | None
    smoothing: float
    clamp: float = 0.0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over all tokens that are not padding."""
        rows, wanted = logits.flatten(0, 1), labels.flatten()
        if self.log_end is None:
            return nn.functional.cross_entropy(
                rows, wanted, ignore_index=_IGNORED, label_smoothing=self.smoothing
            )
        return encouraging_loss(
            rows, wanted, log_end=self.log_end, clamp=self.clamp, ignore_index=_IGNORED,
            label_smoothing=self.smoothing,
        )  # fmt: skip


@dataclass
class Translation:
    """A network in training on a corpus.

    Attributes:
        corpus: the sentences.
        words: their vocabulary.
        setting: of the experiment.
        seed: of weights, order and dropout; the same for every loss.
        device: to train on.
        norms: of the gradient, step by step.
        best: largest validation BLEU.
    """

    corpus: Corpus
    words: Subwords
    setting: Any
    seed: int
    device: torch.device
    norms: GradientNorms = field(default_factory=GradientNorms)
    best: float = -1.0

    def fitted(self, loss: Loss) -> dict[str, Any]:
        """What a loss reaches: BLEU of the averaged and of the best weights, and gradient norms.

        Raises:
            NonFiniteError: training diverged.
        """
        with seeded(seed_of(self.seed, "weights") % 2**31, self.device), _short_products():
            model = translator(len(self.words), self.setting).to(self.device)
            last, chosen = self._train(model, loss)
            found: dict[str, Any] = {"validation": self.best, "norms": self.norms.values().tolist()}
            for name, weights in (("average", _mean(last)), ("best", chosen)):
                model.load_state_dict(weights)
                texts = self.translated(model, self.corpus.test.source, self.setting.beams)
                found[name] = bleu(texts, self.corpus.test.target)["score"]
                found[f"{name}_texts"] = texts
        return found

    def _train(
        self, model: nn.Module, loss: Loss
    ) -> tuple[deque[dict[str, Tensor]], dict[str, Tensor]]:
        """The weights of the last epochs, and those that validation likes best."""
        setting = self.setting
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=setting.lr, betas=(0.9, 0.98), weight_decay=setting.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share_of_rate)
        last: deque[dict[str, Tensor]] = deque(maxlen=setting.averaged)
        chosen, since, step = _kept(model), 0, 0
        for epoch in range(setting.steps):  # at least one step in each
            for batch in self._batches(epoch):
                self._step(model, loss, batch, optimizer)
                schedule.step()
                step += 1
                if step == setting.steps:
                    break
            last.append(_kept(model))
            is_last = step == setting.steps
            if not is_last and (epoch + 1) % setting.validate_every:
                continue
            found, since = self._validation(model), since + 1
            if found > self.best:
                self.best, chosen, since = found, last[-1], 0
            if is_last or since >= setting.patience:
                break
        return last, chosen

    def _share_of_rate(self, step: int) -> float:
        """Of the learning rate: up to it in a line, then down with the square root of the steps."""
        warm = max(1, self.setting.warm_up)
        return float(min((step + 1) / warm, (warm / (step + 1)) ** 0.5))

    def _step(
        self, model: nn.Module, loss: Loss, batch: tuple[Tensor, Tensor], optimizer: Any
    ) -> None:
        model.train()
        source, labels = (part.to(self.device) for part in batch)
        # shifted: each token is predicted from those before it
        given = labels.roll(1, dims=1).masked_fill(labels.roll(1, dims=1) == _IGNORED, PAD)
        given[:, 0] = PAD
        out = model(input_ids=source, attention_mask=source != PAD, decoder_input_ids=given)
        value = loss(out.logits, labels)
        optimizer.zero_grad()
        value.backward()
        self.norms.record(model)
        if not bool(torch.isfinite(value)):
            raise NonFiniteError("the loss is not finite any more; lower the learning rate")
        optimizer.step()

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of like length, about as many tokens in each, in an order of the seed."""
        source, target = self._encoded
        draw = np.random.default_rng(seed_of(self.seed, "order", epoch))
        noise = draw.random(len(source))
        order = sorted(range(len(source)), key=lambda at: (len(target[at]), noise[at]))
        batches, widest = [list[int]()], 0
        for at in order:
            widest = max(widest, len(source[at]), len(target[at]))
            if batches[-1] and widest * (len(batches[-1]) + 1) > self.setting.tokens:
                batches.append([])
                widest = max(len(source[at]), len(target[at]))
            batches[-1].append(at)
        for number in draw.permutation(len(batches)).tolist():
            rows = batches[number]
            yield (
                padded_rows([source[at] for at in rows], PAD),
                padded_rows([target[at] for at in rows], _IGNORED),
            )

    @property
    def _encoded(self) -> tuple[list[list[int]], list[list[int]]]:
        if not hasattr(self, "_rows"):
            most, train = self.setting.most_tokens, self.corpus.train
            self._rows = tuple(self.words.encoded(s, most) for s in (train.source, train.target))
        return self._rows  # type: ignore[return-value]

    def _validation(self, model: nn.Module) -> float:
        pairs = self.corpus.validation
        return float(bleu(self.translated(model, pairs.source, 1), pairs.target)["score"])

    @torch.inference_mode()
    def translated(self, model: nn.Module, texts: Sequence[str], beams: int) -> list[str]:
        """Translations by beam search; sentences of like length go together."""
        model.eval()
        rows = self.words.encoded(texts, self.setting.most_tokens)
        order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
        found: dict[int, str] = {}
        for start in range(0, len(order), self.setting.decoded_at_once):
            part = order[start : start + self.setting.decoded_at_once]
            source = padded_rows([rows[at] for at in part], PAD).to(self.device)
            generate: Any = model.generate  # of transformers
            most = min(self.setting.most_tokens, 2 * source.shape[1] + 8)
            out = generate(
                input_ids=source, attention_mask=(source != PAD).long(), num_beams=beams,
                do_sample=False, max_new_tokens=most,
            )  # fmt: skip
            found |= dict(zip(part, self.words.decoded(out.cpu()), strict=True))
        return [found[at] for at in range(len(rows))]


@contextmanager
def _short_products() -> Iterator[None]:
    """Products of matrices in TF32 on a GPU that has it, of shorter numbers than float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """BLEU of a corpus, and the signature of how it was computed."""
    metric = _sacrebleu().BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return {"score": float(score), "signature": str(metric.get_signature())}


def bootstrapped(
    baseline: Sequence[str], other: Sequence[str], references: Sequence[str], *, samples: int = 1000
) -> float:
    """How often as large a difference of BLEU is chance, by paired bootstrap over sentences."""
    if list(baseline) == list(other):
        return 1.0  # of which sacrebleu makes 1 in 1,001: no sample is more than 0 away from 0
    sacrebleu = _sacrebleu()
    significance = require("sacrebleu.significance", extra="translation", feature=_FEATURE)
    systems = [("baseline", list(baseline)), ("other", list(other))]
    test = significance.PairedTest(
        systems, {"BLEU": sacrebleu.BLEU()}, [list(references)], test_type="bs", n_samples=samples
    )
    return float(test()[1]["BLEU"][1].p_value)


def _sacrebleu() -> ModuleType:
    return require("sacrebleu", extra="translation", feature=_FEATURE)


def _kept(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _mean(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The average of several weights."""
    return {
        name: torch.stack([state[name].float() for state in states]).mean(dim=0).to(tensor.dtype)
        for name, tensor in states[0].items()
    }
