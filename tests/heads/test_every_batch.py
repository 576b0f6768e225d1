"""The equation of a head is held to every batch, not to the first rows alone."""

import pytest
import torch
from torch import Tensor, nn

from hardsight.errors import HeadMismatchError
from hardsight.heads import Head, _capture, capture, find_head, verify_head


class LateBranch(nn.Module):
    """Examples whose first number is above 5 leave by another way."""

    def __init__(self, branch) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, 3)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        logits = self.fc(self.body(x).relu())
        return torch.where(x[:, :1] > 5, self.branch(logits), logits)


def first_and_later(rows: int = 8) -> tuple[Tensor, Tensor]:
    """A batch that takes the usual way, and one whose last row does not."""
    first, later = torch.randn(rows, 6), torch.randn(rows, 6)
    later[-1, 0] = 9.0
    return first, later


@pytest.mark.parametrize(
    "branch",
    [
        lambda z: z + torch.tensor([0.0, 0.0, 0.1]),
        lambda z: z.masked_fill(torch.tensor([False, True, False]), -torch.inf),
        lambda z: 1.01 * z,
        lambda z: z.flip(1),
    ],
    ids=["shift", "mask", "scale", "order"],
)
def test_a_row_of_a_later_batch_that_takes_another_way_is_named(branch):
    model = LateBranch(branch)
    first, later = first_and_later()
    with torch.no_grad(), capture(model, find_head(model, first)) as forward:
        forward(first)
        with pytest.raises(
            HeadMismatchError, match=r"'fc' of LateBranch.* 1 of 8 rows of batch 2 \(rows 7\)"
        ):
            forward(later)


def test_examples_are_named_by_their_ids():
    model = LateBranch(torch.sigmoid)
    first, later = first_and_later()
    with (
        torch.no_grad(),
        capture(model, find_head(model, first)) as forward,
        pytest.raises(HeadMismatchError, match=r"batch 1 \(examples photo-7\)"),
    ):
        forward(later, [f"photo-{row}" for row in range(8)])


def test_a_device_is_not_waited_for_until_its_verdict_is_needed(monkeypatch):
    monkeypatch.setattr(_capture, "is_there", lambda tensor: False)
    model = LateBranch(torch.sigmoid)
    first, later = first_and_later()
    head = find_head(model, first)
    with capture(model, head) as forward:
        forward(first)
        forward(later)  # says nothing yet
        with pytest.raises(HeadMismatchError, match="batch 2"):
            forward.check()

    def run(*batches):
        with capture(model, head) as forward:
            for batch in batches:
                forward(batch)

    with pytest.raises(HeadMismatchError, match="batch 3"):  # at the end of the block
        run(first, first, later, first)
    with pytest.raises(TypeError):  # an error of the caller's goes first
        run(later, None)


def test_a_row_without_numbers_is_not_a_mismatch():
    model = LateBranch(lambda z: z * torch.nan)
    first, later = first_and_later()
    with torch.no_grad(), capture(model, find_head(model, first)) as forward:
        _, logits = forward(later)
        forward(torch.full_like(first, torch.nan))
        forward(torch.full_like(first, torch.inf))
    assert bool(logits[-1].isnan().all())


def test_of_many_classes_every_one_has_its_turn():
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3000)
            self.broken = False

        def forward(self, x: Tensor) -> Tensor:
            logits = self.fc(x)
            return torch.cat([logits[:, :-1], logits[:, -1:] + 1], dim=1) if self.broken else logits

    model, x = Wide(), torch.randn(4, 4)
    head = find_head(model, x)
    model.broken = True
    with torch.no_grad(), capture(model, head) as forward:
        refused = 0
        for _ in range(12):  # 256 classes at a time
            try:
                forward(x)
            except HeadMismatchError:
                refused += 1
    assert refused == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_rounding_of_the_models_dtype_is_not_a_mismatch(dtype):
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 100)).to(dtype)
    batches = torch.randn(20, 16, 64, dtype=dtype)
    with torch.no_grad(), capture(model, find_head(model, batches[0])) as forward:
        for batch in batches:
            forward(batch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inside", [False, True], ids=["around the model", "inside of it"])
def test_rounding_under_autocast_is_not_a_mismatch_even_if_the_logits_are_float32(dtype, inside):
    class Upcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.fc = nn.Linear(64, 512), nn.LayerNorm(512), nn.Linear(512, 9)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(
                "cpu", dtype=dtype, enabled=inside or torch.is_autocast_enabled("cpu")
            ):
                return self.fc(self.norm(self.body(x))).float()

    model, batches = Upcast(), 30 * torch.randn(20, 16, 64)
    head = find_head(model, batches[0])
    around = torch.autocast("cpu", dtype=dtype, enabled=not inside)
    with torch.no_grad(), around, capture(model, head) as forward:
        for batch in batches:
            _, logits = forward(batch)
    assert logits.dtype == torch.float32


def test_a_bias_that_cancels_the_product_is_not_a_mismatch_in_half_precision():
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).to(torch.bfloat16)
    x = torch.randn(256, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        model[2].bias.copy_(-(model[:2](x).float() @ model[2].weight.float().T).mean(0) * 40)
        with capture(model, find_head(model, x[:8])) as forward:
            forward(x)


class OwnToken(nn.Module):
    """Takes the last token that is not padding (0), as causal language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.score = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.embed(ids).cumsum(1)))
        last = (ids != 0).cumsum(1).argmax(1)
        return self.score(hidden)[torch.arange(len(ids)), last]


def padded_ids(lengths: list[int], width: int = 6) -> Tensor:
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, 20, (length,))
    return ids


@pytest.mark.parametrize("first", [[6, 6, 6], [2, 6, 4]], ids=["full rows first", "padded first"])
def test_the_token_that_decides_is_found_row_by_row(first):
    model, x = OwnToken(), padded_ids([3, 6, 1, 5])
    head = find_head(model, padded_ids(first))
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, logits = forward(x)
    hidden = torch.tanh(model.mix(model.embed(x).cumsum(1))).detach()
    expected = hidden[torch.arange(4), torch.tensor([2, 5, 0, 4])]
    torch.testing.assert_close(embeddings, expected)
    torch.testing.assert_close(embeddings @ head.weight.T + head.bias, logits)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_causal_language_models_are_read_at_the_last_token_before_the_padding(kind):
    if kind == "gpt2":
        from transformers import GPT2Config, GPT2ForSequenceClassification

        config = GPT2Config(
            vocab_size=30, n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=3,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = GPT2ForSequenceClassification(config).eval()
    else:
        from transformers import LlamaConfig, LlamaForSequenceClassification

        config = LlamaConfig(
            vocab_size=30, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, num_labels=3, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, max_position_embeddings=16,
        )  # fmt: skip
        model = LlamaForSequenceClassification(config).eval()
    ids = torch.randint(3, 30, (5, 8))
    for row, length in enumerate([8, 3, 5, 8, 1]):
        ids[row, length:] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    head = find_head(model, {name: value[:1] for name, value in inputs.items()})
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, logits = forward(inputs)
        hidden = model.base_model(**inputs).last_hidden_state
    torch.testing.assert_close(embeddings, hidden[torch.arange(5), (ids != 0).sum(1) - 1])
    torch.testing.assert_close(embeddings @ head.weight.T, logits, rtol=1e-4, atol=1e-5)


def test_a_masked_mean_after_the_head_is_refused_as_soon_as_a_mask_is_there():
    class MaskedMean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (self.head(x) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)

    model, x, mask = MaskedMean(), torch.randn(4, 5, 6), torch.ones(4, 5)
    head = find_head(model, (x, mask))
    mask[2, 3:] = 0
    with (
        torch.no_grad(),
        capture(model, head) as forward,
        pytest.raises(HeadMismatchError, match=r"1 of 4 rows of batch 1 \(rows 2\)"),
    ):
        forward((x, mask))


def test_a_head_made_by_hand_must_be_that_of_the_model(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    weight, bias = model.fc.weight.detach(), model.fc.bias.detach()
    for wrong in (
        Head("fc", weight.flip(0), bias),
        Head("fc", weight + 0.01, bias),
        Head("fc", weight, bias + 1),
    ):
        with (
            torch.no_grad(),
            capture(model, wrong) as forward,
            pytest.raises(HeadMismatchError, match=r"head given for TwoLayers does not.*head='fc'"),
        ):
            forward(x)
    with pytest.raises(HeadMismatchError, match="has 4 classes, its logits have 3 columns"):
        verify_head(model, Head("fc", torch.ones(4, 8)), x)


def test_a_head_made_by_hand_takes_the_bias_of_the_layer(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    head = verify_head(model, Head("fc", model.fc.weight.detach()), x)
    torch.testing.assert_close(head.bias, model.fc.bias.detach())


def test_a_weight_that_was_changed_after_the_head_was_found_is_noticed():
    model, x = (
        nn.Sequential(nn.Linear(6, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))),
        torch.randn(5, 6),
    )
    head = find_head(model, x)  # holds a copy of the effective weight
    with torch.no_grad():
        model[1].parametrizations.weight.original0.mul_(2)
        with capture(model, head) as forward, pytest.raises(HeadMismatchError, match="5 of 5"):
            forward(x)


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        normalize = nn.functional.normalize
        return 16 * nn.functional.linear(normalize(x), normalize(self.weight))


@pytest.mark.parametrize(
    "head",
    [
        lambda: nn.Linear(8, 3),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)),
        lambda: Cosine(8, 3),
    ],
    ids=["plain", "weight norm", "spectral norm", "cosine"],
)
def test_weights_that_are_trained_meanwhile_stay_the_head(head):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), head())
    with capture(model, find_head(model, torch.randn(4, 6)), in_training=True) as forward:
        train_five_steps(model, forward)


def train_five_steps(model, forward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        _, logits = forward(torch.randn(8, 6))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, torch.arange(8) % 3).backward()
        optimizer.step()


def test_a_temperature_that_is_trained_stays_part_of_the_head(two_layers):
    model = two_layers()
    model.temperature = nn.Parameter(torch.tensor(2.0))
    model.wrap = lambda logits: logits / model.temperature
    with capture(model, find_head(model, torch.randn(4, 6)), in_training=True) as forward:
        train_five_steps(model, forward)
        model.wrap = lambda logits: logits + torch.tensor([0.0, 1.0, 0.0])
        with pytest.raises(HeadMismatchError, match="8 of 8 rows of batch 6"):
            forward(torch.randn(8, 6))
