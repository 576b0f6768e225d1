"""Planted label errors in real texts, and how many of them are found again.

    python -m examples.text_label_errors --data text/movie-reviews.csv
    python -m examples.text_label_errors --data text/questions-train.csv --epochs 12

Five percent of the labels are exchanged for others. Then the texts are ranked in two ways: by a
bag of words with logistic regression, each text scored by a model that has not seen it, and by the
training dynamics of a small BERT that is trained from nothing on all of them. Printed is which
share of the planted errors stands among as many suspects as were planted.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import transformers
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import hardsight as hs


def planted(labels: list[str], share: float, seed: int) -> tuple[list[str], np.ndarray]:
    """Labels of which a share are others than they were, and which ones."""
    draw = np.random.default_rng(seed)
    names, given = sorted(set(labels)), np.array(labels)
    wrong = np.zeros(len(labels), dtype=bool)
    wrong[draw.choice(len(labels), round(share * len(labels)), replace=False)] = True
    for at in np.flatnonzero(wrong):
        given[at] = draw.choice([name for name in names if name != labels[at]])
    return given.tolist(), wrong


def found(ranks: np.ndarray, wrong: np.ndarray) -> str:
    """Planted errors among as many suspects, and how well all of them are ranked."""
    first = np.argsort(-ranks, kind="stable")[: wrong.sum()]
    return f"{wrong[first].mean():.1%} found, AUROC {roc_auc_score(wrong, ranks):.3f}"


def by_words(texts: list[str], labels: list[str], wrong: np.ndarray, seed: int) -> None:
    """Every text scored by a bag of words that was fitted on the others."""
    scores = ("avh", "logit_margin", "model_confidence", "el2n")
    ranks = {name: np.empty(len(texts)) for name in scores}
    right = []
    for fit, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(texts, labels):
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        model = make_pipeline(words, LogisticRegression(C=4, max_iter=1000))
        model.fit([texts[at] for at in fit], [labels[at] for at in fit])
        table = hs.score(
            model, [texts[at] for at in held], labels=[labels[at] for at in held],
            sample="out-of-sample",
        )  # fmt: skip
        right.append(table.accuracy())
        for name in scores:
            sign = 1 if table.higher_is_harder(name) else -1
            ranks[name][held] = sign * table.column(name)
    print(f"bag of words, 5 folds, accuracy on the given labels {np.mean(right):.1%}")
    for name, values in ranks.items():
        print(f"  {name:18} {found(values, wrong)}")


def by_training(file: Path, wrong: np.ndarray, folder: Path, *, epochs: int, seed: int) -> None:
    """The training dynamics of a small BERT with random weights."""
    start = time.perf_counter()
    done = hs.train(
        f"hf:{folder / 'base'}", file, out=folder / "run", epochs=epochs, batch_size=64,
        track=True, validation=0.0, select="last", seed=seed, max_tokens=64,
        optimizer={"name": "adamw", "lr": 1e-3}, loss=["cross_entropy"],
    )  # fmt: skip
    assert done.dynamics is not None
    accuracy = done.history[-1]["train_accuracy"]
    seconds = time.perf_counter() - start
    print(f"small BERT from nothing, {epochs} epochs, {seconds:.0f} s, accuracy {accuracy:.1%}")
    suspicion = done.dynamics.column("suspicion")[np.argsort(done.dynamics.column("index"))]
    print(f"  {'suspicion':18} {found(suspicion, wrong)}")
    hs.write_report(folder / "run")


def base_model(texts: list[str], classes: list[str], folder: Path) -> None:
    """A tokenizer trained on the texts, and a BERT of two layers with random weights."""
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=8000, special_tokens=special)
    )
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=64,
    )  # fmt: skip
    made.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(made), hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=64, id2label=dict(enumerate(classes)),
        label2id={name: at for at, name in enumerate(classes)},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, required=True, help="CSV with text and label")
    options.add_argument("--share", type=float, default=0.05, help="of the labels to exchange")
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, help="keep the training run here")
    given = options.parse_args()
    with given.data.open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    texts, true = [row["text"] for row in rows], [row["label"] for row in rows]
    labels, wrong = planted(true, given.share, given.seed)
    print(f"{len(texts):,} texts, {len(set(true))} classes, {wrong.sum():,} labels exchanged")
    by_words(texts, labels, wrong, given.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = given.out or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        base_model(texts, sorted(set(true)), folder / "base")
        with (folder / "texts.csv").open("w", newline="", encoding="utf-8") as sink:
            csv.writer(sink).writerows([("text", "label"), *zip(texts, labels, strict=True)])
        by_training(folder / "texts.csv", wrong, folder, epochs=given.epochs, seed=given.seed)


if __name__ == "__main__":
    main()
