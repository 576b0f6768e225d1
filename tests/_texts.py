"""Small models of texts of transformers, with a tokenizer trained on the spot.

Transformers is loaded by what needs it: the texts alone are for tests of the core, too.
"""

from __future__ import annotations

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
