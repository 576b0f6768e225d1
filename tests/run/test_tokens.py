"""Tokens through real language models: the numbers of each sentence alone, a row per token."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from click.testing import CliRunner

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import (
    DataError,
    HardsightWarning,
    HeadNotFoundError,
    ModelError,
    OptionError,
    RunMismatchError,
    TableError,
)
from hardsight.table import RunFolder
from tests._texts import (
    LANGUAGE,
    byte_pairs,
    language_model,
    marian_words,
    pair_words,
    reviews,
    saved,
    saved_language,
    tokenizer,
)

pytestmark = pytest.mark.usefixtures("without_progress")

TEXTS = reviews(40)[0]
OTHERS = [" ".join(reversed(text.split())) for text in reviews(40, seed=1)[0]]
PAIRS = ("t5", "bart", "marian")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: saved_language(root / kind, kind) for kind in LANGUAGE}


def one_by_one(folder, kind, texts, others=None):
    """Logits, what enters the head and targets in float64, each sentence by itself."""
    words = transformers.AutoTokenizer.from_pretrained(folder)
    auto = transformers.AutoModelForCausalLM
    if kind in PAIRS:
        auto = transformers.AutoModelForSeq2SeqLM
    model = auto.from_pretrained(folder).double().eval()
    seen, logits, targets = [], [], []
    handle = model.lm_head.register_forward_hook(lambda _m, args, _out: seen.append(args[0][0]))
    with torch.inference_mode():
        for at, text in enumerate(texts):
            ids = words(text, return_tensors="pt").input_ids
            if kind in PAIRS:
                wanted = words(others[at], return_tensors="pt").input_ids[0]
                start = torch.tensor([model.config.decoder_start_token_id])
                given = torch.cat([start, wanted[:-1]])[None]
                logits.append(model(input_ids=ids, decoder_input_ids=given).logits[0])
                targets.append(wanted)
            else:
                logits.append(model(input_ids=ids).logits[0, :-1])
                seen[-1] = seen[-1][:-1]
                targets.append(ids[0, 1:])
    handle.remove()
    return (
        torch.cat(logits).numpy(), torch.cat(seen).numpy(), torch.cat(targets).numpy(),
        model.lm_head.weight.detach().numpy(), [len(part) for part in targets],
    )  # fmt: skip


@pytest.mark.parametrize("kind", LANGUAGE)
def test_a_row_is_that_of_its_token_in_its_sentence_alone(folders, kind):
    texts, others = TEXTS, OTHERS if kind in PAIRS else None
    options = {"tokens": True} if others is None else {"target": others}
    table = hs.score(f"hf:{folders[kind]}", texts, batch_size=7, **options)
    logits, x, y, weight, counts = one_by_one(folders[kind], kind, texts, others)
    rows = np.arange(len(y))
    lengths = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(weight, axis=1))
    angles = np.arccos(x @ weight.T / lengths)
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    rival = logits.copy()
    rival[rows, y] = -np.inf
    expected = {
        "avh": angles[rows, y] / angles.sum(1),
        "feature_norm": np.linalg.norm(x, axis=1),
        "model_confidence": np.exp(log_probs[rows, y]),
        "logit_margin": logits[rows, y] - rival.max(1),
        "entropy": -(np.exp(log_probs) * log_probs).sum(1),
        "free_energy": -np.logaddexp.reduce(logits, axis=1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(table.column(name), values, rtol=5e-4, atol=5e-4, err_msg=name)
    np.testing.assert_array_equal(table.column("label"), y)
    np.testing.assert_array_equal(table.column("prediction"), logits.argmax(1))
    np.testing.assert_array_equal(table.column("index"), rows)
    np.testing.assert_array_equal(
        table.column("sentence"), np.repeat(np.arange(len(texts)), counts)
    )
    first = 0 if kind in PAIRS else 1
    positions = np.concatenate([np.arange(first, first + count) for count in counts])
    np.testing.assert_array_equal(table.column("position"), positions)


def test_a_bias_behind_the_layer_counts_for_logits_and_not_for_angles(folders):
    table = hs.score(f"hf:{folders['marian']}", TEXTS, target=OTHERS)
    logits, _, _, _, _ = one_by_one(folders["marian"], "marian", TEXTS, OTHERS)
    bias = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folders["marian"]
    ).final_logits_bias.double()  # fmt: skip
    flipped = logits.argmax(1) != (logits - bias.numpy()).argmax(1)
    assert flipped.any()
    assert table.metadata["bias"]["flip_rate"] == pytest.approx(flipped.mean())


def test_the_tokens_of_a_sentence_make_its_text(folders):
    table = hs.score(f"hf:{folders['bart']}", TEXTS, target=OTHERS).to_pandas()
    for number, rows in table.groupby("sentence"):
        assert "".join(rows["token"][:-1]).strip() == OTHERS[number]
        assert rows["token"].iloc[-1] == "</s>"
    table = hs.score(f"hf:{folders['gpt2']}", TEXTS, tokens=True).to_pandas()
    for number, rows in table.groupby("sentence"):
        assert rows["given"].iloc[0] + "".join(rows["token"]) == TEXTS[number]
        assert rows["given"][1:].isna().all()


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_two_sentencepiece_models_as_marian_has_them(tmp_path):
    words = marian_words(tmp_path, TEXTS, [text.upper() for text in OTHERS])
    assert not words.is_fast  # so that nothing says which letters a token stands for
    model = language_model("marian", len(words))
    table = hs.score(model, TEXTS, target=[text.upper() for text in OTHERS], tokenizer=words)
    rows = table.to_pandas()
    for number, part in rows.groupby("sentence"):
        assert "".join(part["token"][:-1]).strip() == OTHERS[number].upper()
    assert (rows.groupby("sentence")["given"].first() == TEXTS).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_change_nothing_but_rounding(seed):
    words = byte_pairs()
    model = language_model("llama", len(words), seed=seed)
    tables = [
        hs.score(model, TEXTS, tokens=True, tokenizer=words, batch_size=size) for size in (1, 5, 64)
    ]
    for table in tables[1:]:
        np.testing.assert_allclose(
            table.column("logit_margin"), tables[0].column("logit_margin"), rtol=1e-3, atol=1e-3
        )
        assert table.to_arrow().column("token") == tables[0].to_arrow().column("token")


def test_no_matrix_of_all_tokens_and_all_of_the_vocabulary_is_made():
    words, made = byte_pairs(), []
    model = language_model("gpt2", len(words))
    handle = model.lm_head.register_forward_hook(lambda _m, _a, out: made.append(out.shape))
    table = hs.score(model, TEXTS, tokens=True, tokenizer=words, batch_size=40)
    handle.remove()
    assert len(table) > 500
    assert max(int(np.prod(shape[:-1])) for shape in made) <= 64


def test_scores_of_logits_alone_are_made_by_the_head_as_well():
    words, made = byte_pairs(), []
    model = language_model("gpt2", len(words))
    whole = hs.score(model, TEXTS, tokens=True, tokenizer=words)
    handle = model.lm_head.register_forward_hook(lambda _m, _a, out: made.append(out.shape))
    table = hs.score(model, TEXTS, tokens=True, tokenizer=words, scores="entropy")
    handle.remove()
    assert max(int(np.prod(shape[:-1])) for shape in made) <= 64
    assert table.scores == ["entropy"]
    np.testing.assert_allclose(table.column("entropy"), whole.column("entropy"), rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "marian"])
def test_half_precision_rounds_and_no_more(kind):
    words = pair_words() if kind == "marian" else byte_pairs()
    model = language_model(kind, len(words))
    options = {"target": OTHERS} if kind == "marian" else {"tokens": True}
    exact, half = (
        hs.score(model, TEXTS, tokenizer=words, precision=name, **options)
        for name in ("float32", "bfloat16")
    )
    for name, allowed in (("avh", 0.03), ("target_angle", 0.05)):
        apart = np.abs(half.column(name) / exact.column(name) - 1)
        assert np.quantile(apart, 0.9) < allowed, name
    assert (half.column("prediction") == exact.column("prediction")).mean() > 0.85


def test_all_forms_of_pairs_give_the_same_table(tmp_path, folders):
    spec = f"hf:{folders['t5']}"
    for name, lines in (("a.de", TEXTS), ("a.en", OTHERS)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        with gzip.open(tmp_path / f"{name}.gz", "wt", encoding="utf-8") as sink:
            sink.write("\r\n".join(lines))
    frame = pd.DataFrame({"de": TEXTS, "en": OTHERS})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    rows = [json.dumps(row) for row in frame.to_dict("records")]
    (tmp_path / "a.jsonl").write_text("\n".join(rows), encoding="utf-8")
    columns = {"text_column": "de", "target": "en"}
    tables = [
        hs.score(spec, TEXTS, target=OTHERS),
        hs.score(spec, tmp_path / "a.de", target=tmp_path / "a.en"),
        hs.score(spec, tmp_path / "a.de.gz", target=str(tmp_path / "a.en.gz")),
        *(
            hs.score(spec, tmp_path / f"a.{form}", **columns)
            for form in ("csv", "parquet", "jsonl")
        ),
        hs.score(spec, frame, **columns),
    ]
    for table in tables[1:]:
        np.testing.assert_array_equal(table.column("avh"), tables[0].column("avh"))


def test_the_command_writes_a_table_and_goes_on_with_it(tmp_path, folders):
    file = tmp_path / "book.txt"
    file.write_text("\n".join([*TEXTS, "", "a"]), encoding="utf-8")
    run = tmp_path / "run"
    command = ["score", "--model", f"hf:{folders['gpt2']}", "--data", str(file), "--out", str(run)]
    result = CliRunner().invoke(main, [*command, "--max-tokens", "20", "--shard-rows", "8",
                                       "--batch-size", "2"])  # fmt: skip
    assert result.exit_code == 0, result.output
    table = hs.read_table(run)
    long = sum(len(byte_pairs()(text)["input_ids"]) > 20 for text in TEXTS)
    assert f"{long} of 40 sentences are longer than the model takes" in result.output
    assert "passed over: empty sentences (1), sentences without a token" in result.output
    assert table.metadata["counts"]["truncated"] == long
    assert table.metadata["data"]["sentences"] == 40
    assert table.column("position").max() == 19
    other = hs.score(f"hf:{folders['gpt2']}", file, max_tokens=20)
    np.testing.assert_allclose(table.column("avh"), other.column("avh"), rtol=1e-4)
    assert "[" in next(iter(RunFolder(run).excerpts().values()))


def test_there_is_nothing_to_relabel(tmp_path, folders):
    hs.score(f"hf:{folders['gpt2']}", TEXTS, tokens=True, out=tmp_path / "run")
    said = r"a row for each token of sentences, .* hardsight report .*/run$"
    with pytest.raises(TableError, match=said):
        hs.review(tmp_path / "run", open_browser=False)
    with pytest.raises(TableError, match="a row for each token of sentences, and rows are selec"):
        hs.select(tmp_path / "run", keep=0.5)


def test_a_run_that_was_interrupted_goes_on_to_the_same_table(tmp_path, folders, monkeypatch):
    options = {"tokens": True, "batch_size": 2, "shard_rows": 8, "max_tokens": 30}
    spec, whole = f"hf:{folders['llama']}", tmp_path / "whole"
    hs.score(spec, TEXTS, out=whole, **options)
    write = RunFolder.write_shard

    def killed(self, number, *args, **more):
        write(self, number, *args, **more)
        if number == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        hs.score(spec, TEXTS, out=tmp_path / "run", **options)
    monkeypatch.undo()
    table = hs.score(spec, TEXTS, out=tmp_path / "run", resume=True, **options)
    assert table.to_arrow().equals(hs.read_table(whole).to_arrow())
    with pytest.raises(RunMismatchError):
        hs.score(spec, OTHERS, out=tmp_path / "run", resume=True, **options)
    with pytest.raises(RunMismatchError):  # the same sentences, in other tokens
        hs.score(spec, TEXTS, out=tmp_path / "run", resume=True, **{**options, "max_tokens": 20})


def test_a_sentence_that_is_cut_does_not_end(folders):
    spec = f"hf:{folders['bart']}"
    table = hs.score(spec, TEXTS, target=OTHERS, max_tokens=6).to_pandas()
    lengths = np.array([len(text.split()) + 1 for text in OTHERS])  # and the token at the end
    ends = table.groupby("sentence")["token"].last() == "</s>"
    np.testing.assert_array_equal(ends.to_numpy(), lengths <= 6)


def test_words_outside_the_vocabulary_are_counted_and_said(folders):
    with pytest.warns(HardsightWarning, match="2 of 7 tokens are not in the vocabulary"):
        table = hs.score(
            f"hf:{folders['t5']}", ["the film", "a plot"], target=["the zebra", "a b film"]
        )
    assert table.metadata["counts"]["unknown"] == 2


@pytest.mark.parametrize(
    ("kind", "data", "options", "error", "said"),
    [
        ("gpt2", TEXTS, {"target": OTHERS}, DataError, "causal model predicts .* has pairs; leave"),
        ("t5", TEXTS, {"tokens": True}, DataError, "sentences by themselves; pass target="),
        ("t5", TEXTS, {"target": OTHERS[:-1]}, DataError, "got 40 and 39; line n of one must"),
        ("t5", TEXTS, {"target": 3}, OptionError, "expected target to be a list of sentences"),
        ("gpt2", ["", " "], {"tokens": True}, DataError, "it has no lines with text"),
        ("gpt2", ["a", "."], {"tokens": True}, DataError, "each is a single token"),
        ("gpt2", TEXTS, {"tokens": True, "max_tokens": 65}, OptionError, "65 is more than the 64"),
        ("gpt2", TEXTS, {"tokens": True, "classes": ["a", "b"]}, OptionError, "the vocabulary"),
        ("gpt2", TEXTS, {"tokens": True, "rows": [0, 1]}, OptionError, "a row for each token"),
        ("gpt2", TEXTS, {"tokens": True, "group": {"a": [1] * 40}}, OptionError, "group cannot be"),
        ("gpt2", "builtin:digits", {"tokens": True}, OptionError, "holds no texts"),
        ("gpt2", "builtin:digits", {"target": "x"}, OptionError, "holds no texts"),
    ],
)
def test_what_cannot_be_read_is_refused(folders, kind, data, options, error, said):
    with pytest.raises(error, match=said):
        hs.score(f"hf:{folders[kind]}", data, **options)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path, folders):
    (tmp_path / "a.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "a.en").write_text("one\n", encoding="utf-8")
    (tmp_path / "b.en").write_bytes(b"\xff\xfe\x00one")
    (tmp_path / "none.txt").write_text("", encoding="utf-8")
    spec, data = f"hf:{folders['t5']}", tmp_path / "a.de"
    with pytest.raises(DataError, match=r"a.de has 2 lines and .*a.en 1: line n of one must be"):
        hs.score(spec, data, target=tmp_path / "a.en")
    with pytest.raises(DataError, match=r"cannot read .*b.en as lines of text"):
        hs.score(spec, data, target=tmp_path / "b.en")
    with pytest.raises(DataError, match=r"no examples in .*none.txt: it has no lines"):
        hs.score(spec, tmp_path / "none.txt")
    pd.DataFrame({"text": TEXTS}).to_csv(tmp_path / "c.csv")
    with pytest.raises(DataError, match=r"no column 'en' in .*: it has"):
        hs.score(spec, tmp_path / "c.csv", target="en")
    frame = pd.DataFrame({"text": TEXTS, "number": range(40)})
    with pytest.raises(DataError, match=r"expected texts in DataFrame, got 0: .* holds numbers"):
        hs.score(f"hf:{folders['gpt2']}", frame, tokens=True, text_column="number")
    with pytest.raises(DataError, match="expected texts in the column 'number' of DataFrame"):
        hs.score(spec, frame, target="number")


def test_a_model_that_predicts_no_tokens_is_refused(tmp_path):
    folder = saved(tmp_path / "bert", "bert")
    with pytest.raises(ModelError, match="saved as BertForSequenceClassification, which does not"):
        hs.score(f"hf:{folder}", TEXTS, tokens=True)


def test_a_tokenizer_of_another_model_is_refused():
    words = byte_pairs()
    with pytest.raises(ModelError, match=r"300 tokens, .* embeddings for 200: it is not the"):
        hs.score(language_model("gpt2", 200), TEXTS, tokens=True, tokenizer=words)
    with pytest.raises(ModelError, match=r"300 tokens, .* embeddings for 900, most of which"):
        hs.score(language_model("gpt2", 900), TEXTS, tokens=True, tokenizer=words)
    with pytest.raises(ModelError, match="texts need a tokenizer"):
        hs.score(language_model("gpt2", 300), TEXTS, tokens=True)


def test_padded_vocabularies_are_read(folders):
    words = byte_pairs()
    table = hs.score(language_model("gpt2", 320), TEXTS, tokens=True, tokenizer=words)
    assert len(set(table.classes)) == len(table.classes) == 320
    assert table.classes[:300] == words.convert_ids_to_tokens(list(range(300)))


def test_an_own_module_names_its_layer():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.leave = torch.nn.Embedding(300, 8), torch.nn.Linear(8, 300)

        def forward(self, input_ids):
            x = self.enter(input_ids)
            return self.leave(x.cumsum(1))

    torch.manual_seed(0)
    model, words = Own(), byte_pairs()
    with pytest.raises(HeadNotFoundError, match="name it by head="):
        hs.score(model, TEXTS, tokens=True, tokenizer=words)
    table = hs.score(model, TEXTS[:4], tokens=True, tokenizer=words, head="leave")
    expected = []
    for text in TEXTS[:4]:
        ids = torch.tensor([words(text)["input_ids"]])
        logits = model(ids)[0, :-1].double().log_softmax(dim=1)
        expected.append(logits[torch.arange(len(logits)), ids[0, 1:]].exp())
    wanted = torch.cat(expected).detach().numpy()
    np.testing.assert_allclose(table.column("model_confidence"), wanted, rtol=1e-3, atol=1e-5)


def test_a_model_without_a_linear_head_gets_what_logits_tell():
    config = transformers.Gemma2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=48, head_dim=16, vocab_size=300, pad_token_id=0, eos_token_id=1,
        bos_token_id=1, final_logit_softcapping=2.0, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model, words = transformers.Gemma2ForCausalLM(config).eval(), byte_pairs()
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    with pytest.warns(HardsightWarning, match=r"avh, .* are missing"):
        table = hs.score(model, TEXTS[:5], tokens=True, tokenizer=words)
    ids = torch.tensor([words(TEXTS[0])["input_ids"]])
    logits = model(ids).logits[0, :-1].double()
    expected = logits.log_softmax(dim=1)[torch.arange(len(logits)), ids[0, 1:]].exp()
    np.testing.assert_allclose(
        table.column("model_confidence")[: len(expected)], expected.detach().numpy(), rtol=1e-3
    )


def test_special_tokens_at_the_beginning_are_given():
    words = tokenizer()  # [CLS] ... [SEP]
    model = language_model("llama", len(words))
    table = hs.score(model, TEXTS[:6], tokens=True, tokenizer=words).to_pandas()
    assert (table.groupby("sentence")["position"].first() == 1).all()
    assert (table.groupby("sentence")["token"].last() == "[SEP]").all()
    assert pair_words().eos_token == "</s>"
