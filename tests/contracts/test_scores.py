"""What every score of the registry keeps to, and planted scores that break each rule."""

import dataclasses
import inspect
import re

import pytest
import torch

import hardsight.scores
from hardsight.errors import TensorError
from hardsight.geometry import pairwise_angles
from hardsight.registry import SCORES
from hardsight.scores import Summaries, head_summaries, logit_summaries

NUM_CLASSES, DIM = 6, 9


def tensors(n=24, dtype=torch.float32):
    """Embeddings, labels, a head and its logits, as one model would give them."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(NUM_CLASSES, DIM, generator=generator)
    labels = torch.randint(0, NUM_CLASSES, (n,), generator=generator)
    embeddings = torch.randn(n, DIM, generator=generator) + weights[labels]
    given = {
        "embeddings": embeddings,
        "class_weights": weights,
        "logits": embeddings @ weights.T,
    }
    return {name: tensor.to(dtype) for name, tensor in given.items()} | {"labels": labels}


def edge_tensors():
    """Zero, aligned, opposite, tiny and huge embeddings; flat, one-hot and extreme logits."""
    given = tensors(n=8)
    weights, labels = given["class_weights"], given["labels"]
    embeddings = torch.zeros(8, DIM)
    embeddings[1], embeddings[2] = weights[labels[1]], -weights[labels[2]]
    embeddings[3], embeddings[4] = 1e-30 * weights[labels[3]], 1e30 * weights[labels[4]]
    embeddings[5:] = given["embeddings"][5:]
    logits = torch.zeros(8, NUM_CLASSES)
    logits[1, labels[1]], logits[2, labels[2]] = 1e4, -1e4
    logits[3], logits[4] = 1e4, -1e4
    logits[5, labels[5]] = 30.0
    return given | {"embeddings": embeddings, "logits": logits}


def scored(spec, given):
    return spec.function(*(given[name] for name in spec.inputs))


def rows(given, index):
    """The same examples in the order of ``index``; a head has no rows of examples."""
    return {name: t if name == "class_weights" else t[index] for name, t in given.items()}


# ------------------------------------------------------------------------------- contracts


def has_one_value_per_example(spec):
    for n in (24, 1, 0):
        expected = (n, NUM_CLASSES) if spec.per_class else (n,)
        assert scored(spec, tensors(n)).shape == expected


def is_finite(spec):
    assert scored(spec, tensors()).isfinite().all()


def stays_in_its_range(spec):
    assert spec.low < spec.high
    for given in (tensors(), edge_tensors()):
        values = scored(spec, given)
        low, high = values.new_tensor(spec.low), values.new_tensor(spec.high)
        assert ((values >= low) & (values <= high)).all()


def tells_easy_from_hard(spec):
    weights = torch.eye(3)
    given = {
        # the first: long, along its class; the second: short, towards another class
        "embeddings": torch.tensor([[9.0, 0.3, 0.3], [0.1, 0.2, 0.1]]),
        "class_weights": weights,
        "labels": torch.tensor([0, 0]),
    }
    given["logits"] = given["embeddings"] @ weights.T
    values = scored(spec, given)
    easy, hard = values[:, 0] if spec.per_class else values
    assert (hard > easy) == spec.higher_is_harder
    assert hard != easy


def works_in_float32_or_wider(spec):
    reference = scored(spec, tensors(dtype=torch.float64))
    assert reference.dtype == torch.float64
    for dtype in (torch.bfloat16, torch.float16):
        narrow = tensors(dtype=dtype)
        got = scored(spec, narrow)
        assert got.dtype == torch.float32
        # exact for the values the narrow input holds
        wide = {name: t if name == "labels" else t.double() for name, t in narrow.items()}
        torch.testing.assert_close(got.double(), scored(spec, wide), rtol=1e-5, atol=1e-5)


def takes_a_batch_of_one(spec):
    given = tensors()
    alone = torch.cat([scored(spec, rows(given, slice(i, i + 1))) for i in range(24)])
    together = scored(spec, given)
    if spec.over_dataset:  # alone there is nothing to compare with
        assert alone.isfinite().all()
    else:
        torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def follows_its_rows(spec):
    given = tensors()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    shuffled = scored(spec, rows(given, order))
    torch.testing.assert_close(shuffled, scored(spec, given)[order], rtol=1e-5, atol=1e-6)


def repeats_itself(spec):
    given = tensors()
    assert torch.equal(scored(spec, given), scored(spec, given))


def is_defined_on_zero_and_aligned_vectors(spec):
    assert scored(spec, edge_tensors()).isfinite().all()


def has_finite_gradients(spec):
    for given in (tensors(), edge_tensors()):
        leaves = [given[name].clone().requires_grad_() for name in spec.inputs if name != "labels"]
        names = [name for name in spec.inputs if name != "labels"]
        values = scored(spec, given | dict(zip(names, leaves, strict=True)))
        slopes = torch.autograd.grad(values.sum(), leaves)
        assert all(slope.isfinite().all() for slope in slopes)


def leaves_its_inputs_alone(spec):
    given = tensors()
    before = {name: tensor.clone() for name, tensor in given.items()}
    with torch.inference_mode():
        scored(spec, given)
    assert all(torch.equal(given[name], before[name]) for name in given)


def compiles_in_one_graph(spec):
    given = tensors()
    torch.compiler.reset()
    compiled = torch.compile(spec.function, backend="eager", fullgraph=True)
    try:
        values = scored(dataclasses.replace(spec, function=compiled), given)
    except torch._dynamo.exc.Unsupported as err:
        raise AssertionError(str(err)) from err
    torch.testing.assert_close(values, scored(spec, given), rtol=1e-5, atol=1e-6)


def asks_for_tensors(spec):
    for name in spec.inputs:
        said = ""
        try:
            scored(spec, tensors() | {name: tensors()[name].numpy()})
        except TensorError as err:
            said = str(err)
        assert f"expected {name} to be a torch.Tensor, got ndarray" in said


def agrees_with_its_formula(spec):
    for given in (tensors(), edge_tensors()):
        if "logits" in spec.inputs:
            logits, targets = logit_summaries(given["logits"], given["labels"])
            summaries = Summaries(logits=logits, targets=targets)
        else:
            summaries = head_summaries(
                given["embeddings"], given["labels"], given["class_weights"], classes_at_once=4
            )
        if spec.reads == "pairwise_angles":
            summary = pairwise_angles(given["embeddings"], given["class_weights"])
        else:
            summary = getattr(summaries, spec.reads)
        arguments = (given["labels"],) if spec.over_dataset else ()
        torch.testing.assert_close(
            spec.formula(summary, *arguments), scored(spec, given), rtol=1e-5, atol=1e-6
        )


def says_whether_probabilities_are_enough(spec):
    given = tensors()
    moved = given | {"logits": given["logits"] + torch.linspace(-3, 3, 24)[:, None]}
    stays = torch.allclose(scored(spec, given), scored(spec, moved), atol=1e-4)
    assert stays is not spec.needs_offset


def is_documented(spec):
    text = inspect.getdoc(spec.function) or ""
    for part in (".. math::", "Args:", "Returns:", "Raises:", "Example:", ">>> "):
        assert part in text, part
    for name in spec.inputs:
        assert f"{name}:" in text, name
    assert "harder" in text or "confidence" in text, "direction"


def is_explained_in_two_sentences(spec):
    assert 1 <= len(re.findall(r"[.!?](?:\s|$)", spec.meaning)) <= 2
    assert spec.meaning.endswith(".")


def is_public_and_names_its_inputs(spec):
    assert getattr(hardsight.scores, spec.function.__name__) is spec.function
    parameters = inspect.signature(spec.function).parameters.values()
    tensors = [one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert tuple(tensors) == spec.inputs
    assert spec.version >= 1


CONTRACTS = [
    has_one_value_per_example,
    is_finite,
    stays_in_its_range,
    tells_easy_from_hard,
    works_in_float32_or_wider,
    takes_a_batch_of_one,
    follows_its_rows,
    repeats_itself,
    is_defined_on_zero_and_aligned_vectors,
    has_finite_gradients,
    leaves_its_inputs_alone,
    compiles_in_one_graph,
    asks_for_tensors,
    agrees_with_its_formula,
    says_whether_probabilities_are_enough,
    is_documented,
    is_explained_in_two_sentences,
    is_public_and_names_its_inputs,
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("name", list(SCORES))
def test_every_score(name, contract):
    contract(SCORES[name])


def test_the_registry_holds_the_scores_of_the_design():
    functions = {spec.function.__name__ for spec in SCORES.values()}
    assert functions >= {
        "angular_visual_hardness", "angular_visual_confidence", "target_angle", "angular_margin",
        "feature_norm", "class_normalized_feature_norm", "model_confidence", "logit_margin",
        "el2n", "conditional_energy", "entropy", "min_energy", "free_energy",
    }  # fmt: skip
    assert all(name == spec.name for name, spec in SCORES.items())
    assert len(functions) == len(SCORES)


# ---------------------------------------------------------------- each contract can fail


def planted(function, **changes):
    """AVH, with another function or other facts."""
    return dataclasses.replace(SCORES["avh"], function=function, **changes)


def _with_cosine(embeddings, labels, class_weights):
    # the angle as it is often written: no gradient at 0, none for a zero vector
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    weights = class_weights / class_weights.norm(dim=1, keepdim=True)
    return (unit * weights[labels]).sum(dim=1).clamp(-1, 1).acos()


def _averaged(embeddings, labels, class_weights):
    return avh(embeddings, labels, class_weights).mean()


def _norm_in_own_dtype(embeddings, labels, class_weights):
    return embeddings.norm(dim=1)


def _ranked_by_position(embeddings, labels, class_weights):
    return torch.arange(len(labels)).float()


def _in_place(embeddings, labels, class_weights):
    return embeddings.clone().copy_(embeddings.mul_(2)).norm(dim=1)


def _centred(embeddings, labels, class_weights):
    return avh(embeddings - embeddings.mean(dim=0), labels, class_weights)


def _branching(embeddings, labels, class_weights):
    hardness = avh(embeddings, labels, class_weights)
    return hardness if hardness.sum() > 0 else -hardness


class _Counter:
    calls = 0

    def __call__(self, embeddings, labels, class_weights):
        self.calls += 1
        return torch.full((len(labels),), float(self.calls))


avh = SCORES["avh"].function

PLANTED = [
    (has_one_value_per_example, planted(_averaged)),
    (is_finite, planted(lambda x, y, w: avh(x, y, w) / 0)),
    (stays_in_its_range, planted(lambda x, y, w: -avh(x, y, w))),
    (tells_easy_from_hard, planted(avh, higher_is_harder=False)),
    (tells_easy_from_hard, planted(lambda x, y, w: torch.zeros(len(y)))),
    (works_in_float32_or_wider, planted(_norm_in_own_dtype)),
    (takes_a_batch_of_one, planted(_centred)),
    (follows_its_rows, planted(_ranked_by_position)),
    (repeats_itself, planted(_Counter())),
    (is_defined_on_zero_and_aligned_vectors, planted(_with_cosine)),
    (has_finite_gradients, planted(_with_cosine)),
    (leaves_its_inputs_alone, planted(_in_place)),
    (compiles_in_one_graph, planted(_branching)),
    (asks_for_tensors, planted(lambda x, y, w: avh(*map(torch.as_tensor, (x, y, w))))),
    (agrees_with_its_formula, planted(lambda x, y, w: 2 * avh(x, y, w))),
    (says_whether_probabilities_are_enough, planted(avh, needs_offset=True)),
    (is_documented, planted(_averaged)),
    (is_explained_in_two_sentences, planted(avh, meaning="One. Two. Three.")),
    (is_explained_in_two_sentences, planted(avh, meaning="")),
    (is_public_and_names_its_inputs, planted(avh, inputs=("embeddings", "labels"))),
]


@pytest.mark.parametrize(
    ("contract", "spec"), PLANTED, ids=lambda value: getattr(value, "__name__", "planted")
)
def test_a_planted_score_breaks_the_contract(contract, spec):
    with pytest.raises(AssertionError):
        contract(spec)


def test_every_contract_has_a_planted_score():
    assert {contract for contract, _ in PLANTED} == set(CONTRACTS)
