"""Scoring texts end to end: against bare inference over the same batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import hardsight as hs
from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.data.source import Parts
from hardsight.data.texts import Tokens


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args(args)
    texts, labels = _texts(options.texts)
    tokenizer = _tokenizer(texts)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=options.width, num_hidden_layers=options.layers,
        num_attention_heads=4, intermediate_size=4 * options.width, max_position_embeddings=128,
        num_labels=4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    tokens = Tokens(tokenizer, model, batch_size=64)

    def bare() -> None:  # the same texts in the same batches, and the class of each
        with torch.inference_mode():
            for first in range(0, len(texts), 64 * tokens.batches_at_once):
                inputs, _ = tokens.collated(texts[first : first + 64 * tokens.batches_at_once])
                for part in inputs.inputs if isinstance(inputs, Parts) else [inputs]:
                    model(**part).logits.argmax(1)

    def unsorted() -> None:  # as they come, padded to the longest of a batch
        with torch.inference_mode():
            for first in range(0, len(texts), 64):
                some = tokenizer(texts[first : first + 64], padding=True, return_tensors="pt")
                model(**some).logits.argmax(1)

    def scored() -> None:
        hs.score(model, texts, labels=labels, tokenizer=tokenizer, batch_size=64)

    variants = {"bare": bare, "score": scored, "bare, in the order of the file": unsorted}
    # other programs on the same cores would otherwise decide
    seconds = interleaved(variants, repeats=options.repeats, clock=time.process_time)
    base = row("", seconds["bare"])["median_s"]
    rows = [row(name, values) for name, values in seconds.items()]
    rows = [{**entry, "speed_of_bare": round(base / entry["median_s"], 3)} for entry in rows]
    title = f"Scoring {options.texts:,} texts, all scores, CPU time (target: 0.95 of bare)"
    publish(title, rows, file=options.out)


def _texts(count: int) -> tuple[list[str], list[int]]:
    draw = np.random.default_rng(0)
    words = [f"w{number}" for number in range(2000)]
    lengths = np.clip(draw.lognormal(3.2, 0.6, count), 4, 120).astype(int)
    return [" ".join(draw.choice(words, length)) for length in lengths], [
        row % 4 for row in range(count)
    ]


def _tokenizer(texts: list[str]) -> transformers.PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128
    )


if __name__ == "__main__":
    main()
