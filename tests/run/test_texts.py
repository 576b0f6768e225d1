"""Texts through real architectures: the numbers of each text alone; what is cut is said."""

from __future__ import annotations

import csv
import json
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from click.testing import CliRunner
from datasets import ClassLabel, Dataset, Features, Value
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tokenizers import Tokenizer

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import DataError, HardsightWarning, LabelError, ModelError, OptionError
from tests._texts import KINDS, network, reviews, saved, tokenizer

pytestmark = pytest.mark.usefixtures("without_progress")

TEXTS, LABELS = reviews(90)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: saved(root / kind, kind) for kind in KINDS}


def written(file, texts=TEXTS, labels=LABELS, header=("text", "label")):
    with file.open("w", newline="", encoding="utf-8") as sink:
        csv.writer(sink).writerows([header, *zip(texts, labels, strict=True)])
    return file


def one_by_one(folder, texts=TEXTS, limit=48):
    """Logits and what enters the head, each text by itself and without padding."""
    words = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    head = model.score if hasattr(model, "score") else model.classifier
    seen, logits = [], []
    handle = head.register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    with torch.inference_mode():
        for text in texts:
            ids = words(text, truncation=True, max_length=limit, return_tensors="pt")
            ids.pop("token_type_ids", None)
            logits.append(model(**ids).logits)
            seen[-1] = seen[-1].reshape(-1, seen[-1].shape[-1])[-1:]  # the last token decides
    handle.remove()
    return torch.cat(logits).double().numpy(), torch.cat(seen).double().numpy(), head


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_that_of_its_text_alone_in_the_order_of_the_file(tmp_path, folders, kind):
    file = written(tmp_path / "reviews.csv", header=("review", "stars"))
    table = hs.score(
        f"hf:{folders[kind]}", file, text_column="review", label_column="stars", batch_size=7,
        out=tmp_path / "run",
    )  # fmt: skip
    logits, embeddings, head = one_by_one(folders[kind])
    y = np.array([("bad", "good").index(label) for label in LABELS])
    rows = np.arange(len(y))
    weight = head.weight.detach().double().numpy()
    lengths = np.outer(np.linalg.norm(embeddings, axis=1), np.linalg.norm(weight, axis=1))
    angles = np.arccos(embeddings @ weight.T / lengths)
    expected = {
        "avh": angles[rows, y] / angles.sum(1),
        "feature_norm": np.linalg.norm(embeddings, axis=1),
        "logit_margin": logits[rows, y] - logits[rows, 1 - y],
        "free_energy": -np.logaddexp.reduce(logits, axis=1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(table.column(name), values, rtol=2e-4, atol=2e-4, err_msg=name)
    np.testing.assert_array_equal(table.column("prediction"), logits.argmax(1))
    np.testing.assert_array_equal(table.column("index"), rows)
    assert table.metadata["class_order"]["taken"] == "name"


def test_the_batch_size_changes_nothing_but_rounding(folders):
    spec = f"hf:{folders['bert']}"
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    tables = [hs.score(spec, frame, batch_size=size) for size in (1, 5, 64)]
    for table in tables[1:]:
        np.testing.assert_allclose(
            table.column("avh"), tables[0].column("avh"), rtol=1e-4, atol=1e-5
        )


def test_all_forms_of_texts_give_the_same_table(tmp_path, folders):
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    lines = [json.dumps(row) for row in frame.to_dict("records")]
    (tmp_path / "reviews.jsonl").write_text("\n".join(lines), encoding="utf-8")
    frame.to_parquet(tmp_path / "reviews.parquet")
    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    forms = [
        written(tmp_path / "reviews.csv"), tmp_path / "reviews.jsonl",
        tmp_path / "reviews.parquet", frame, Dataset.from_pandas(frame),
        Dataset.from_dict({"text": TEXTS, "label": LABELS}, features=kinds),
    ]  # fmt: skip
    words = tokenizer()
    model = network("distilbert", len(words))
    columns = [hs.score(model, form, tokenizer=words).column("avh") for form in forms]
    columns.append(hs.score(model, TEXTS, labels=LABELS, tokenizer=words).column("avh"))
    for column in columns[1:]:
        np.testing.assert_array_equal(column, columns[0])


def test_texts_beyond_the_limit_are_cut_counted_and_said(folders):
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    long = sum(len(text.split()) + 2 > 12 for text in TEXTS)
    with pytest.warns(HardsightWarning, match=rf"{long} of 90 texts are longer.*at most 12"):
        table = hs.score(f"hf:{folders['bert']}", frame, max_tokens=12)
    assert table.metadata["counts"]["truncated"] == long
    logits, _, _ = one_by_one(folders["bert"], limit=12)
    np.testing.assert_allclose(table.column("min_energy"), -logits.max(1), rtol=1e-4, atol=1e-4)
    with pytest.raises(OptionError, match="max_tokens = 65 is more than the 64 positions"):
        hs.score(f"hf:{folders['bert']}", frame, max_tokens=65)


def test_the_command_scores_texts_and_its_report_shows_them(tmp_path, folders):
    file = written(tmp_path / "reviews.csv", [*TEXTS, " "], [*LABELS, "bad"], ("review", "stars"))
    done = CliRunner().invoke(main, [
        "score", "--model", f"hf:{folders['gpt2']}", "--data", str(file), "--text-column", "review",
        "--label-column", "stars", "--out", str(tmp_path / "run"),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "90 rows" in done.output
    page = hs.write_report(tmp_path / "run").read_text(encoding="utf-8")
    hardest = int(hs.read_table(tmp_path / "run").hardest(1)["index"].iloc[0])
    assert " ".join(TEXTS[hardest].split()[:12]) in page
    errors = pd.read_parquet(tmp_path / "run" / "errors.parquet")
    assert errors["reason"].tolist() == ["the text is empty"]


def test_a_model_is_fine_tuned_tracked_and_scored_again(tmp_path):
    texts, labels = reviews(240)
    file = written(tmp_path / "reviews.csv", texts, labels)
    words = tokenizer()
    network("distilbert", len(words), far=False).save_pretrained(tmp_path / "base")
    words.save_pretrained(tmp_path / "base")
    done = hs.train(
        f"hf:{tmp_path / 'base'}", file, out=tmp_path / "run", epochs=8, batch_size=16, track=True,
        optimizer={"name": "adamw", "lr": 3e-3}, loss=["encouraging"], device="cpu",
    )  # fmt: skip
    assert done.history[-1]["val_accuracy"] > 0.9
    assert len(done.dynamics) == 240
    table = hs.score(tmp_path / "run", file)
    assert table.accuracy() > 0.9
    page = hs.write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert 'class="excerpt"' in page


def test_a_causal_model_trains_with_a_loss_on_its_angles(tmp_path, folders):
    file = written(tmp_path / "reviews.csv")
    done = hs.train(
        f"hf:{folders['gpt2']}", file, out=tmp_path / "run", epochs=1, max_tokens=20,
        loss=[{"name": "avh", "options": {"scale": 8}}], device="cpu", select="last",
        validation=0.0,
    )  # fmt: skip
    assert np.isfinite(done.history[-1]["train_loss"])


def test_a_language_model_gets_a_head_for_the_classes_of_the_data(tmp_path):
    words = tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "lm")
    words.save_pretrained(tmp_path / "lm")
    labels = [("a", "b", "c")[row % 3] for row in range(len(TEXTS))]
    file = written(tmp_path / "three.csv", labels=labels)
    hs.train(f"hf:{tmp_path / 'lm'}", file, out=tmp_path / "run", epochs=1, device="cpu")
    table = hs.score(tmp_path / "run", file)
    assert table.metadata["classes"] == ["a", "b", "c"]


def test_a_pipeline_of_scikit_learn_reads_the_same_file(tmp_path):
    file = written(tmp_path / "reviews.csv", header=("review", "verdict"))
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, LABELS)
    by_name = hs.score(
        model, file, text_column="review", label_column="verdict", out=tmp_path / "run"
    )
    plain = hs.score(model, TEXTS, labels=LABELS)
    np.testing.assert_array_equal(by_name.column("avh"), plain.column("avh"))
    assert 'class="excerpt"' in hs.write_report(tmp_path / "run").read_text(encoding="utf-8")


def test_a_module_without_a_mask_sees_no_padding(tmp_path):
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 2)

        def forward(self, input_ids):
            return self.head(self.words(input_ids).mean(dim=1))

    torch.manual_seed(0)
    model, words = Counts(), tokenizer()
    table = hs.score(model, TEXTS, labels=LABELS, classes=["bad", "good"], tokenizer=words)
    with torch.inference_mode():
        logits = torch.cat([model(torch.tensor([words(text)["input_ids"]])) for text in TEXTS])
    np.testing.assert_allclose(table.column("min_energy"), -logits.amax(1), rtol=1e-5, atol=1e-5)


class MeanOfWords(torch.nn.Module):
    """Embeddings of so many tokens, and a head; what it does with them is up to the test."""

    def __init__(self, tokens):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(tokens, 8), torch.nn.Linear(8, 2)


@pytest.mark.parametrize("declares", [False, True])
def test_a_module_that_ignores_its_mask_is_told_of_and_sees_no_padding(declares):
    class Counts(MeanOfWords):
        def forward(self, input_ids, **more):
            return self.head(self.words(input_ids).mean(dim=1))

    class Declares(Counts):
        def forward(self, input_ids, attention_mask=None):
            return super().forward(input_ids)

    torch.manual_seed(0)
    model, words = (Declares if declares else Counts)(64), tokenizer()
    options = {"labels": LABELS, "classes": ["bad", "good"], "tokenizer": words}
    with pytest.warns(HardsightWarning, match="depend on how far it is padded"):
        table = hs.score(model, TEXTS, **options)
    with torch.inference_mode():
        logits = torch.cat([model(torch.tensor([words(text)["input_ids"]])) for text in TEXTS])
    np.testing.assert_allclose(table.column("min_energy"), -logits.amax(1), rtol=1e-5, atol=1e-5)


def test_a_model_of_texts_is_tried_three_times_and_told_of_if_it_looks_at_others():
    words, passes = tokenizer(), []
    model = network("bert", len(words))
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    score = partial(hs.score, model, TEXTS[:20], labels=LABELS[:20], tokenizer=words)
    assert "rows_depend_on" not in score().metadata["model"]
    assert len(passes) == 4  # the last is the pass itself
    model.classifier.register_forward_pre_hook(lambda _, given: (given[0] - given[0].mean(0),))
    with pytest.warns(HardsightWarning, match="depend on the other examples of its batch"):
        assert score().metadata["model"]["rows_depend_on"] == "batch"


def test_tokenizers_that_do_not_fit_are_refused(folders):
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    words = tokenizer()
    small = network("bert", len(words) - 5)
    with pytest.raises(ModelError, match=r"the tokenizer has \d+ tokens, and .* embeddings for"):
        hs.score(small, frame, tokenizer=words)
    with pytest.raises(ModelError, match="texts need a tokenizer, and the model brings none"):
        hs.score(network("bert", len(words)), frame)
    with pytest.raises(ModelError, match=r"the tokenizer of GPT2.* has no padding token"):
        hs.score(network("gpt2", len(words)), frame, tokenizer=tokenizer(pads=False))
    unpadded = network("gpt2", len(words))
    unpadded.config.pad_token_id = None
    with pytest.raises(ModelError, match=r"the config of GPT2.* has no padding token"):
        hs.score(unpadded, frame, tokenizer=words)
    with pytest.raises(OptionError, match="tokenizer cannot be used here: builtin:digits"):
        hs.score("small_cnn", "builtin:digits", tokenizer=words)


def with_other_numbers(words):
    """The same tokens in the opposite order."""
    content = json.loads(words.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    plain = [word for word in vocabulary if not word.startswith("[")]
    numbers = [vocabulary[word] for word in reversed(plain)]
    vocabulary.update(zip(plain, numbers, strict=True))
    backend = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", model_max_length=48,
    )  # fmt: skip
    assert len(backend) == len(words)
    return backend


@pytest.mark.parametrize("verb", ["score", "train"])
def test_a_tokenizer_whose_numbers_mean_other_words_is_told(verb, tmp_path, folders):
    file, words = written(tmp_path / "reviews.csv"), with_other_numbers(tokenizer())
    words.save_pretrained(tmp_path / "other")
    says = r"not the model's own: 28 of its 32 tokens .* is number \d+ for the model and number \d+"
    call = {
        "score": hs.score,
        "train": partial(hs.train, out=tmp_path / "run", epochs=1, validation=0.0, select="last"),
    }[verb]
    with pytest.warns(HardsightWarning, match=says):
        call(f"hf:{folders['bert']}", file, tokenizer=str(tmp_path / "other"), device="cpu")
    own = str(folders["bert"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", HardsightWarning)
        hs.score(f"hf:{own}", file, tokenizer=own, device="cpu")


@pytest.mark.parametrize("says_which", [False, True])
def test_a_vocabulary_that_cannot_be_compared_is_told(says_which):
    class Folded(MeanOfWords):
        """Takes the remainder, as models of hashed characters do."""

        def get_input_embeddings(self):
            raise NotImplementedError

        def forward(self, input_ids):
            return self.head(self.words(input_ids % 8).mean(dim=1))

    if not says_which:
        del Folded.get_input_embeddings
    torch.manual_seed(0)
    with pytest.warns(HardsightWarning, match=r"32 tokens, and the largest embedding .* is for 8"):
        hs.score(Folded(8), TEXTS, labels=LABELS, classes=["bad", "good"], tokenizer=tokenizer())


def test_a_tokenizer_that_brings_code_is_refused(tmp_path, folders):
    folder = saved(tmp_path / "own", "bert")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["code.Tokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"brings Python code of its own, which is not run"):
        hs.score(f"hf:{folder}", written(tmp_path / "reviews.csv"))


def test_verbs_of_pictures_refuse_texts(tmp_path, folders):
    file = written(tmp_path / "reviews.csv")
    for source, target in ((file, "builtin:digits"), ("builtin:digits", file)):
        with pytest.raises(DataError, match=r"the kind 'text', but adapting needs pictures or arr"):
            hs.adapt("small_cnn", source, target, out=tmp_path / "run")
    with pytest.raises(DataError, match=r"only pictures can be degraded, got str from"):
        hs.study_degradation(f"hf:{folders['bert']}", file, noise=(0.1, 0.2), out=tmp_path / "run")


def test_lists_of_words_are_not_said_to_be_numbers():
    words = pd.DataFrame({"text": [["a", "film"], ["b"]], "label": [0, 1]})
    with pytest.raises(DataError, match="the column holds lists, not text; join the words of each"):
        hs.data.open_source(words)


@pytest.mark.parametrize(
    ("header", "given", "error", "says"),
    [
        (("words", "label"), {}, DataError, "no column of"),
        (("text", "stars"), {}, DataError, "no column of labels"),
        (("text", "label"), {"text_column": "body"}, DataError, "no column 'body' in .*: it has"),
        (("text", "label"), {"label_column": "stars"}, DataError, "no column 'stars' in"),
        (("text", "label"), {"text_column": "label"}, DataError, "holds numbers, not text"),
        (("text", "label"), {"label_column": "text"}, LabelError, "90 different values in 90 rows"),
    ],
)
def test_the_wrong_column_is_told(tmp_path, header, given, error, says):
    file = written(tmp_path / "reviews.csv", labels=[row % 2 for row in range(90)], header=header)
    with pytest.raises(error, match=says):
        hs.score("small_cnn", file, **given)


def test_a_list_that_could_be_of_texts_or_pictures_is_refused(tmp_path):
    file = tmp_path / "both.csv"
    file.write_text("path,text,label\na.png,a cat,0\nb.png,a dog,1\n")
    with pytest.raises(DataError, match=r"--text-column text\) for texts, or .*--image-column"):
        hs.data.open_source(file)
    assert hs.data.open_source(file, text_column="text")[0].content == "a cat"
    with pytest.raises(DataError, match="none of the pictures"):  # read as a list of pictures
        hs.data.open_source(file, image_column="path")
    with pytest.raises(OptionError, match="text_column and image_column both name"):
        hs.data.open_source(file, image_column="path", text_column="text")
    with pytest.raises(OptionError, match="text_column cannot be used here: builtin:digits"):
        hs.data.open_source("builtin:digits", text_column="text")


def test_labels_that_count_from_1_are_classes_by_name(tmp_path):
    file = written(tmp_path / "stars.csv", labels=[1 + row % 5 for row in range(90)])
    with pytest.warns(HardsightWarning, match="are 1 to 5: they are 5 classes of these names"):
        source = hs.data.open_source(file)
    assert source.classes == ("1", "2", "3", "4", "5")
    np.testing.assert_array_equal(source.labels, np.arange(90) % 5)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["01", "1", "2"], "'01' and '1' .* would both be class 1"),
        (["1", "2", "1.5"], "whole numbers, got 1.5"),
        ([1, 2, 1.5], "whole numbers, got 1.5"),
        ([1, 2, float("inf")], "whole numbers, got inf"),
    ],
    ids=str,
)
def test_labels_that_almost_count_from_1_are_not_made_to(tmp_path, labels, says):
    lines = [json.dumps({"text": f"a film {n}", "label": label}) for n, label in enumerate(labels)]
    (tmp_path / "stars.jsonl").write_text("\n".join(lines))
    with pytest.raises(LabelError, match=says):
        hs.data.open_source(tmp_path / "stars.jsonl")


def test_one_of_two_columns_of_a_name_is_not_chosen_by_chance(tmp_path):
    (tmp_path / "twice.csv").write_text("text,label,label\na b,0,1\nc d,1,0\n")
    with pytest.raises(DataError, match=r"column 'label' is there twice in .*twice\.csv"):
        hs.data.open_source(tmp_path / "twice.csv")
    (tmp_path / "twice.jsonl").write_text('{"text": "a b", "label": 0, "label": 1}\n')
    with pytest.raises(DataError, match="an object has 'label' twice"):
        hs.data.open_source(tmp_path / "twice.jsonl")


def test_a_missing_id_is_not_a_name(tmp_path):
    (tmp_path / "ids.csv").write_text("id,text,label\n,a b,x\n7,c d,y\n")
    source = hs.data.open_source(tmp_path / "ids.csv")
    assert [source.id_of(0), source.id_of(1)] == ["row 0", "7"]


def test_a_card_of_texts_has_all_parts_but_those_of_pictures(folders, tmp_path):
    data = written(tmp_path / "reviews.csv", header=("words", "stars"))
    columns = {"text_column": "words", "label_column": "stars"}
    names = {kind: f"hf:{folders[kind]}" for kind in ("bert", "gpt2")}
    card = hs.evaluation_card(
        names, data, ood=data, feature_examples=10, map_examples=10, out=tmp_path / "card",
        device="cpu", batch_size=4, **columns,
    )  # fmt: skip
    for kind, model in zip(names, card["models"], strict=True):
        table = hs.score(names[kind], data, device="cpu", **columns)
        assert model["accuracy"]["top1"]["value"] == pytest.approx(table.accuracy())
        assert model["counts"]["rows"] == len(table)
        for part in ("robustness", "explanation"):
            assert model[part]["note"] == "it is for pictures, and the data holds the kind 'text'"
        assert model["preprocessing"]["origin"].startswith("tokens of ")
    page = hs.write_report(tmp_path / "card").read_text(encoding="utf-8")
    assert page.count("it is for pictures") >= 2
    with pytest.raises(OptionError, match=r"attacks change pixels, and .* reads the kind 'text'"):
        hs.evaluation_card(names, data, epsilons=[0.1], device="cpu", **columns)
    with pytest.raises(DataError, match=r"holds pictures or arrays, but the .* are for example"):
        hs.evaluation_card(
            names["bert"], written(tmp_path / "plain.csv"), ood="builtin:digits", device="cpu"
        )


@pytest.mark.parametrize("verb", [hs.score, hs.evaluation_card, hs.queue])
def test_a_model_that_was_stored_without_a_head_is_refused(tmp_path, folders, verb):
    # transformers would draw the head at random, and print it at most
    trained = transformers.AutoModel.from_pretrained(folders["bert"])
    trained.save_pretrained(tmp_path / "body")
    transformers.AutoTokenizer.from_pretrained(folders["bert"]).save_pretrained(tmp_path / "body")
    file = written(tmp_path / "reviews.csv", labels=[row % 2 for row in range(90)])
    more = {"budget": 3} if verb is hs.queue else {}
    with pytest.raises(
        ModelError, match=r"stores no classifier\.bias, classifier\.weight: they wou"
    ):
        verb(f"hf:{tmp_path / 'body'}", file, **more)
