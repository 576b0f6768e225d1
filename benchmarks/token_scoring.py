"""Scoring tokens end to end: against a bare forward pass over the same batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import hardsight as hs
from benchmarks._measure import arguments, interleaved, publish, row
from hardsight.data.formats import SentenceSource
from hardsight.data.source import Parts
from hardsight.data.texts import TargetTokens
from hardsight.preprocessing import PLACES


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(args)
    texts = _texts(options.sentences)
    tokenizer = _tokenizer(texts, options.vocabulary)
    config = transformers.GPT2Config(
        vocab_size=options.vocabulary, n_embd=options.width, n_layer=options.layers, n_head=4,
        n_positions=128, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    device = torch.device(options.device)
    is_gpu = device.type == "cuda"
    model = transformers.GPT2LMHeadModel(config).eval().to(device)
    batches = _batches(texts, tokenizer, model, options.batch)
    dtype = torch.bfloat16 if is_gpu else torch.float32

    def logits(per_batch: object = None) -> None:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=is_gpu):
            for inputs in batches:
                placed = {key: value.to(device) for key, value in inputs.items()}
                rows = placed.pop(PLACES)
                found = model(**placed).logits
                if per_batch is not None:  # the least that anyone does with them
                    kept = found.flatten(0, 1)[rows].float()
                    kept.log_softmax(dim=1).amax(dim=1)
        if is_gpu:
            torch.cuda.synchronize()

    def scored() -> None:
        hs.score(
            model, texts, tokens=True, tokenizer=tokenizer, batch_size=options.batch,
            device=str(device),
        )  # fmt: skip

    variants = {
        "bare": logits, "bare, and log-probabilities": lambda: logits(True), "score": scored,
    }  # fmt: skip
    # other programs on the same cores would otherwise decide
    clock = time.perf_counter if is_gpu else time.process_time
    seconds = interleaved(variants, repeats=options.repeats, clock=clock)
    base = row("", seconds["bare"])["median_s"]
    tokens = sum(len(inputs[PLACES]) for inputs in batches)
    facts = {"tokens": tokens, "vocabulary": options.vocabulary, "width": options.width}
    rows = [row(name, values, **facts) for name, values in seconds.items()]
    rows = [{**entry, "speed_of_bare": round(base / entry["median_s"], 3)} for entry in rows]
    title = f"Scoring {tokens:,} tokens of {options.vocabulary:,}, all scores (target: 0.8 of bare)"
    publish(title, rows, file=options.out)


def _batches(
    texts: list[str], tokenizer: object, model: torch.nn.Module, size: int
) -> list[dict[str, torch.Tensor]]:
    """The batches that scoring forms, made before the clock starts."""
    kind = TargetTokens(tokenizer, model, batch_size=size)
    source = SentenceSource(texts, spec="made up").of_kind(kind)
    sentences = [source[at].content for at in range(len(source))]
    found, step = [], size * kind.batches_at_once
    for first in range(0, len(sentences), step):
        inputs, _ = kind.collated(sentences[first : first + step])
        found += inputs.inputs if isinstance(inputs, Parts) else [inputs]
    return found


def _texts(count: int) -> list[str]:
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(3.0, 0.5, count), 4, 100).astype(int)
    return [" ".join(f"w{n}" for n in draw.integers(3000, size=length)) for length in lengths]


def _tokenizer(texts: list[str], size: int) -> transformers.PreTrainedTokenizerFast:
    """Words as tokens, and as many more tokens as the vocabulary is to have."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.add_tokens([f"more{n}" for n in range(size - made.get_vocab_size())])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", model_max_length=128
    )


if __name__ == "__main__":
    main()
