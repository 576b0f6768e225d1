"""Encouraging Loss, Table 1, the columns of translation, and the remark on gradient norms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hardsight import __version__
from hardsight.errors import NonFiniteError
from hardsight.experiments import lab as kit
from hardsight.experiments.el import _norms as norms
from hardsight.experiments.el._recipes import CLAMP, loss_name
from hardsight.experiments.el._translator import (
    MADE_UP,
    Corpus,
    Loss,
    Subwords,
    Translation,
    bleu,
    bootstrapped,
    parallel_text,
)
from hardsight.run_folder import write_text

_MEASURES = ("average", "best", "validation", "norm", "bootstrap")
_TITLES = {"multi30k": "Multi30k", MADE_UP: "numbers and things, made up"}
_GOOD = {"multi30k": 33.0}  # BLEU that plain training is to reach before losses are compared
_POINTS = 100  # of a curve
_PAPER = "IWSLT14 de-en 35.09 ± 0.07 to 35.50 ± 0.11, IWSLT17 fr-en 37.10 ± 0.06 to 37.73 ± 0.17"


@dataclass(frozen=True)
class Setting:
    """Keys of ``el-translation``.

    Attributes:
        data: folder of parallel text below the data root, or ``numbers``, which is made up.
        languages: endings of its files, what is translated first.
        splits: its files to train on, to choose by and to judge by.
        log_ends: LE of Encouraging Loss with label smoothing; 0.5 is compared without it as well.
        smoothing: of the labels.
        vocabulary: subwords of both languages together.
        width: features of a token.
        layers: of the encoder, and as many of the decoder.
        heads: of attention.
        inner: features inside a feed-forward block.
        dropout: of what each block adds.
        lr: of Adam at its largest.
        warm_up: steps until then; afterwards it falls with the square root of the steps.
        weight_decay: of Adam.
        tokens: of a step, padding included.
        steps: most of a run.
        patience: validations without a better BLEU after which a run ends.
        validate_every: epochs between validations.
        averaged: epochs whose weights are averaged, the last ones.
        beams: of the search for translations of the test set; validation takes one.
        most_tokens: of a sentence; longer ones are cut.
        decoded_at_once: sentences.
        limit: most pairs to train on; ``None`` for all.
        held_out: most pairs to choose by, and to judge by; ``None`` for all.
        seeds: of weights, order and dropout, the same for every loss.
    """

    data: str = "multi30k"
    languages: tuple[str, str] = ("de", "en")
    splits: tuple[str, str, str] = ("train", "val", "test_2016_flickr")
    log_ends: tuple[float, ...] = (0.5, 0.75, 1.0)
    smoothing: float = 0.1
    vocabulary: int = 8000
    width: int = 256
    layers: int = 3
    heads: int = 4
    inner: int = 512
    dropout: float = 0.3
    lr: float = 1e-3
    warm_up: int = 1000
    weight_decay: float = 1e-4
    tokens: int = 4096
    steps: int = 3000
    patience: int = 10
    validate_every: int = 2
    averaged: int = 10
    beams: int = 5
    most_tokens: int = 128
    decoded_at_once: int = 128
    limit: int | None = None
    held_out: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def title(self) -> str:
        """The data in words."""
        named = _TITLES.get(self.data, self.data)
        return named if self.data == MADE_UP else f"{named}, {' to '.join(self.languages)}"

    @property
    def losses(self) -> dict[str, Loss]:
        """All losses by name; the first is what the others are compared with."""
        plain = {_with_smoothing(None): Loss(None, self.smoothing)}
        plain[loss_name(0.5)] = Loss(0.5, 0.0)
        smoothed = {
            _with_smoothing(end): Loss(end, self.smoothing, CLAMP if end == 1 else 0.0)
            for end in self.log_ends
        }
        return plain | smoothed


def _with_smoothing(log_end: float | None) -> str:
    return f"{loss_name(log_end)} + LS"


_CE = _with_smoothing(None)


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    grid = kit.Grid.read(data["losses"], setting.seeds, "loss")
    weak = _weakness(setting, grid)
    questions = [
        grid.question(
            f"Encouraging Loss gives more BLEU ({loss})", said, "average", {"loss": loss},
            {"loss": _CE}, weak=weak,
        )
        for loss, said in _compared(setting).items()
    ]  # fmt: skip
    questions += norms.questions(grid, _with_smoothing, _CE, weak=weak)
    if 1.0 in setting.log_ends:
        questions.append(
            grid.question(
                "A bonus as steep as the logarithm (LE=1) costs BLEU",
                "1 to 2 BLEU less than CE",
                "average",
                {"loss": _with_smoothing(1.0)},
                {"loss": _CE},
                larger=False,
                weak=weak,
            )
        )
    return [_bleu_table(setting, grid, str(data["signature"])), _norm_table(grid)], questions


def _compared(setting: Setting) -> dict[str, str]:
    """Losses that are said to give more BLEU, with what the paper has of them."""
    smoothed = {_with_smoothing(end): "LE=0.75 and 0.5 are the paper's choice"
                for end in setting.log_ends if end != 1}  # fmt: skip
    known = {_with_smoothing(0.5): f"other corpora: {_PAPER}"}
    return (
        smoothed
        | {key: said for key, said in known.items() if key in smoothed}
        | {loss_name(0.5): "not in the paper: without label smoothing"}
    )


def _weakness(setting: Setting, grid: kit.Grid) -> str:
    good, reached = _GOOD.get(setting.data), kit.spread(grid.values("average", loss=_CE))
    if good is None or not reached.n or reached.mean >= good:
        return ""
    return f"{reached.mean:.1f} BLEU reached by CE, and at least {good:.0f} are needed"


def _bleu_table(setting: Setting, grid: kit.Grid, signature: str) -> kit.Table:
    columns: dict[str, str | Callable[..., kit.Cell]] = {
        "BLEU, average of the last epochs": "average", "BLEU, best epoch": "best",
        "validation BLEU, greedy": "validation", "p of each seed": _bootstrap_cell,
    }  # fmt: skip
    return grid.table(
        f"BLEU on the test set of {setting.title}", {"loss": "loss"}, columns,
        note=f"Mean and standard deviation over {len(setting.seeds)} seeds; BLEU by sacrebleu, "
        f"{signature}; beam {setting.beams}. p is that of the paired bootstrap over sentences, "
        f"against {_CE} of the same seed: it knows of other sentences, not of other "
        "seeds, by which claims are judged.",
    )  # fmt: skip


def _bootstrap_cell(runs: kit.Grid, loss: str) -> str | None:
    if loss == _CE:
        return None
    return ", ".join("–" if p != p else f"{p:.3f}" for p in runs.values("bootstrap"))


def _norm_table(grid: kit.Grid) -> kit.Table:
    rows = [
        [loss, grid.cell("norm", loss=loss), kit.spread(norms.ratios(grid, loss, _CE))]
        for loss in grid.names("loss")
    ]
    return kit.Table(
        "Norm of the gradient over the second half of training",
        ("loss", "norm", f"times that of {_CE}"), rows,
        note="The paper's remark compares LE=1 (> 5 times) and LE=0.75 (< 1.7 times) with CE.",
    )  # fmt: skip


@kit.experiment(
    "el-translation",
    title="Encouraging Loss against cross-entropy on translation",
    reproduces="Encouraging Loss, Table 1, translation, and its remark on gradient norms",
    scales={
        "smoke": Setting(
            data=MADE_UP, log_ends=(0.5, 1.0), vocabulary=200, width=32, layers=1, heads=2,
            inner=64, dropout=0.0, lr=5e-3, warm_up=20, tokens=512, steps=20, validate_every=10,
            averaged=2, beams=2, most_tokens=24, held_out=20, seeds=(0, 1),
        ),
        "short": Setting(),
        "paper": Setting(
            width=512, layers=6, inner=1024, dropout=0.4, warm_up=4000, steps=8000,
            patience=20, validate_every=1, seeds=(0, 1, 2, 3, 4),
        ),
    },
    asks=_asks,
)  # fmt: skip
def el_translation(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Compares cross-entropy with label smoothing {smoothing} with Encouraging Loss, on {title}.

    Encouraging Loss has LE = {log_ends} with the same label smoothing, which also applies to the
    bonus, and LE = 0.5 without any. The network is a post-norm Transformer of {layers} + {layers}
    layers, {width} features, {inner} inner features, {heads} heads and dropout {dropout}. All
    embeddings are shared, over a joint vocabulary of {vocabulary} subwords of sentencepiece.

    Training uses Adam (0.9, 0.98) with a learning rate of {lr} after {warm_up} steps, which then
    falls with the square root of the steps. It takes {tokens} tokens per step and at most {steps}
    steps, and ends after {patience} validations without a better BLEU. On a GPU, matrices are
    multiplied in TF32.

    Translations are searched for with {beams} beams, once with the average of the weights after the
    last {averaged} epochs and once with the weights that have the best validation BLEU. All losses
    share weights, order and random draws of a seed, so they are compared in pairs. The paper uses
    other corpora (IWSLT), so its BLEU cannot be compared with these numbers.
    """
    corpus = parallel_text(
        setting.data, lab.data_root, languages=setting.languages, splits=setting.splits
    ).limited(setting.limit, setting.held_out)
    words = Subwords([*corpus.train.source, *corpus.train.target], setting.vocabulary)
    rows, curves = [], dict[str, list[list[float]]]()
    total = len(setting.seeds) * len(setting.losses)
    with lab.progress(f"translators of {setting.title}", total) as advance:
        for seed in setting.seeds:
            plain = _kept(lab, setting, corpus, words, seed, setting.losses[_CE])
            for name, loss in setting.losses.items():
                found = _kept(lab, setting, corpus, words, seed, loss)
                others = None if name == _CE else plain
                rows.append({"loss": name, "seed": seed, **_numbers(found, others, corpus)})
                if found:
                    curves.setdefault(name, []).append(norms.thinned(found["norms"], _POINTS))
                advance(1)
    grid = kit.Grid.of(rows, "loss", measures=_MEASURES)
    signature = bleu(corpus.test.target, corpus.test.target)["signature"]
    return kit.Result(
        figures=[norms.figure(lab, curves)],
        data={"losses": grid.data(), "norms": curves, "signature": signature,
              "vocabulary": len(words), "pairs": len(corpus.train)},
    )  # fmt: skip


def _kept(
    lab: kit.Lab, setting: Setting, corpus: Corpus, words: Subwords, seed: int, loss: Loss
) -> dict[str, Any]:
    """What a loss reaches at one seed, measured once for all runs that share a folder.

    Empty if the run was lost.
    """
    key = {
        **asdict(setting), "seeds": seed, "log_ends": None, "loss": asdict(loss),
        "data": _digest(asdict(corpus)), "version": __version__, "device": lab.device.type,
    }  # fmt: skip
    file = lab.runs / f"translation-{_digest(key)}.json"
    if not file.exists():
        lab.runs.mkdir(parents=True, exist_ok=True)
        run = Translation(corpus, words, setting, seed, lab.device)
        try:
            found = run.fitted(loss)
        except NonFiniteError:
            found = {}
        write_text(file, json.dumps(found))
    stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return stored


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _numbers(
    found: Mapping[str, Any], plain: Mapping[str, Any] | None, corpus: Corpus
) -> dict[str, float]:
    """Measures of a run; ``plain`` is that of cross-entropy at the same seed, of other losses."""
    if not found:
        return {}
    lengths = found["norms"]
    numbers = {name: float(found[name]) for name in ("average", "best", "validation")}
    numbers["norm"] = float(np.mean(lengths[len(lengths) // 2 :]))
    if plain:
        texts = plain["average_texts"], found["average_texts"]
        numbers["bootstrap"] = bootstrapped(*texts, corpus.test.target)
    return numbers
