"""Small models of texts of transformers, with a tokenizer trained on the spot.

Transformers is loaded by what needs it: the texts alone are for tests of the core, too.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import transformers

WORDS = {
    "good": ["warm", "funny", "bright", "tender", "moving", "fine", "lovely", "charming"],
    "bad": ["dull", "cold", "slow", "tired", "loud", "empty", "clumsy", "bleak"],
}
FILLERS = ["the", "film", "is", "a", "and", "of", "in", "this", "with", "story", "plot", "cast"]
KINDS = ("bert", "distilbert", "gpt2")


def reviews(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of 3 to 40 words, and their labels."""
    draw = np.random.default_rng(seed)
    texts, labels = [], []
    for row in range(count):
        label = ("bad", "good")[row % 2]
        words = draw.choice(FILLERS, draw.integers(2, 38)).tolist()
        for word in draw.choice(WORDS[label], draw.integers(1, 3)).tolist():
            words.insert(int(draw.integers(len(words))), word)
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def tokenizer(limit: int = 48, *, pads: bool = True) -> transformers.PreTrainedTokenizerFast:
    """Words as tokens, between [CLS] and [SEP]."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    texts, _ = reviews(200)
    made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    given = {"pad_token": "[PAD]"} if pads else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=limit, **given,
    )  # fmt: skip


def network(
    kind: str, vocabulary: int, classes: int = 2, *, far: bool = True, named: bool = True, **options
) -> torch.nn.Module:
    """A model with random weights, as its config makes it."""
    import transformers

    names = {at: name for at, name in enumerate(("bad", "good", "odd")[:classes])}
    said = {"id2label": names, "label2id": {name: at for at, name in names.items()}}
    common = {
        "vocab_size": vocabulary, "pad_token_id": 0, **(said if named else {"num_labels": classes}),
        **options,
    }  # fmt: skip
    if kind == "bert":
        config = transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=64, **common,
        )  # fmt: skip
    elif kind == "distilbert":
        config = transformers.DistilBertConfig(
            dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=64, **common
        )
    else:
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **common)
    torch.manual_seed(0)
    made = transformers.AutoModelForSequenceClassification.from_config(config)
    for parameter in made.parameters() if far else ():  # from the tiny weights that it draws
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def saved(folder: Path, kind: str, **options) -> Path:
    """A folder as save_pretrained writes it, with its tokenizer."""
    words = tokenizer()
    network(kind, len(words), **options).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


LANGUAGE = ("gpt2", "llama", "t5", "bart", "marian")


def byte_pairs(limit: int = 64) -> transformers.PreTrainedTokenizerFast:
    """Byte pairs as GPT-2 has them: a token may be a part of a word, and none comes first."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(reviews(200)[0], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<eos>", model_max_length=limit
    )


def pair_words(limit: int = 48) -> transformers.PreTrainedTokenizerFast:
    """Words as tokens, with one at the end of a sentence."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    made.train_from_iterator(reviews(200)[0], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", eos_token="</s>",
        model_max_length=limit,
    )  # fmt: skip


def language_model(kind: str, vocabulary: int, seed: int = 0, width: int = 32) -> torch.nn.Module:
    """A language model with random weights that are far from each other."""
    import transformers

    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "vocab_size": vocabulary}
    halves = {
        "d_model": width, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "max_position_embeddings": 64, "forced_eos_token_id": None,
    }  # fmt: skip
    configs = {
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=width, n_layer=2, n_head=2, n_positions=64, **ends
        ),
        "llama": lambda: transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=64, **ends,
        ),
        "t5": lambda: transformers.T5Config(
            d_model=width, d_kv=16, num_layers=1, num_heads=2, d_ff=48, decoder_start_token_id=0,
            **{key: value for key, value in ends.items() if key != "bos_token_id"},
        ),
        "bart": lambda: transformers.BartConfig(**halves, **ends, decoder_start_token_id=1),
        "marian": lambda: transformers.MarianConfig(**halves, **ends, decoder_start_token_id=0),
    }  # fmt: skip
    torch.manual_seed(seed)
    config = configs[kind]()
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    made = auto.from_config(config)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    if kind == "marian":  # what its checkpoints have, and the layer itself does not
        made.final_logits_bias.normal_()
    return made.eval()


def saved_language(folder: Path, kind: str, words=None, **options) -> Path:
    """A folder of a language model as save_pretrained writes it, with its tokenizer."""
    words = words or (pair_words() if kind in ("t5", "bart", "marian") else byte_pairs())
    language_model(kind, len(words), **options).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def marian_words(folder: Path, sources: list[str], targets: list[str]):
    """Marian's own tokenizer: a sentencepiece model for each language, and one vocabulary."""
    import sentencepiece
    import transformers

    pieces = {}
    for name, texts in (("source", sources), ("target", targets)):
        sink = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=sink, vocab_size=90,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (folder / f"{name}.spm").write_bytes(sink.getvalue())
        found = sentencepiece.SentencePieceProcessor(model_proto=sink.getvalue())
        pieces |= dict.fromkeys(found.id_to_piece(n) for n in range(found.vocab_size()))
    own = [piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")]
    vocabulary = {piece: n for n, piece in enumerate(["</s>", "<unk>", *own, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return transformers.MarianTokenizer(
        source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"), model_max_length=64,
    )  # fmt: skip
