import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardsight.errors import (
    NonFiniteError,
    OptionError,
    ProbabilityError,
    ShapeError,
    UnknownNameError,
)
from hardsight.selftrain import (
    RULES,
    class_thresholds,
    pseudo_labels,
    select,
    selection_quality,
    soft_pseudo_labels,
)


def made_up(n=400, classes=7, width=5, seed=0, sharpness=3.0):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(classes, width, generator=generator)
    embeddings = torch.randn(n, width, generator=generator) * 2
    bias = torch.randn(classes, generator=generator)
    return torch.softmax(sharpness * (embeddings @ weights.T + bias) / 5, 1), embeddings, weights


def ranked(confidence, predictions, classes, portion, empty):
    """Thresholds and ranks by a plain sort, in python."""
    thresholds, ranks = [], []
    for c in range(classes):
        own = sorted((v for v, k in zip(confidence, predictions, strict=True) if k == c),
                     reverse=True)  # fmt: skip
        rank = math.floor(len(own) * portion + 1e-9)
        rank = max(rank, min(1, len(own))) if empty == "one" else rank
        thresholds.append(own[rank - 1] if rank else 1.0)
        ranks.append(rank)
    return np.array(thresholds), np.array(ranks)


def angular_confidence(embeddings, weights):
    x, w = embeddings.double().numpy(), weights.double().numpy()
    cosines = (x @ w.T) / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(w, axis=1)
    closeness = np.pi - np.arccos(np.clip(cosines, -1, 1))
    return closeness / closeness.sum(axis=1, keepdims=True)


def by_hand(rule, probs, embeddings, weights, portion, *, empty="never", strict=False, alpha=0.25):
    """Every rule a second time, one example after the other, in float64."""
    p = probs.double().numpy()
    classes = p.shape[1]
    avc = angular_confidence(embeddings, weights)
    if rule == "avc":
        p = avc
    predictions = p.argmax(1)
    lambdas, ranks = ranked(p.max(1), predictions, classes, portion, empty)
    betas, _ = ranked(avc[np.arange(len(p)), predictions], predictions, classes, portion, empty)
    labels = []
    for i in range(len(p)):
        k = int((p[i] / lambdas).argmax())
        if rule == "cbst+avh":
            value, bound = avc[i, k], betas[k]
        elif rule in ("crst-lrent", "crst"):
            value, bound = ((p[i] / lambdas) ** (1 / alpha)).sum(), 1.0
        else:
            value, bound = p[i, k], lambdas[k]
        kept = value > bound if strict else value >= bound
        labels.append(k if kept and ranks[k] else -1)
    return labels


@pytest.mark.parametrize("portion", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", [{}, {"empty": "one"}, {"comparison": ">"}])
def test_labels_are_those_of_the_rule_written_a_second_time(rule, portion, options):
    probs, embeddings, weights = made_up()
    got = pseudo_labels(
        probs.double(), portion=portion, rule=rule, embeddings=embeddings.double(),
        class_weights=weights.double(), **options,
    )  # fmt: skip
    strict = options.get("comparison") == ">"
    wanted = by_hand(
        rule,
        probs,
        embeddings,
        weights,
        portion,
        strict=strict,
        empty=options.get("empty", "never"),
    )
    assert got.tolist() == wanted
    assert got.dtype == torch.int64


def test_the_rules_differ_where_they_should():
    probs, embeddings, weights = made_up(sharpness=1.0)
    labels = {
        rule: pseudo_labels(
            probs, portion=0.3, rule=rule, embeddings=embeddings, class_weights=weights
        )
        for rule in RULES
    }
    assert torch.equal(labels["cbst"], labels["crst-mrkld"])
    assert torch.equal(labels["crst"], labels["crst-lrent"])
    for other in ("cbst+avh", "avc", "crst-lrent"):
        assert not torch.equal(labels["cbst"], labels[other])
    assert not torch.equal(labels["cbst+avh"], labels["avc"])
    # the largest ratio reaches 1 only if the sum of their powers does
    assert ((labels["cbst"] >= 0) <= (labels["crst-lrent"] >= 0)).all()


def test_eq_4_takes_the_label_from_probabilities_and_the_selection_from_angles():
    # both examples are predicted as class 0; the angles of the second are clearer, its norm small
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    embeddings = torch.tensor([[9.0, 4.0], [1.0, 0.1]])
    probs = torch.softmax(embeddings @ weights.T, 1)
    assert pseudo_labels(probs, portion=0.5).tolist() == [0, -1]
    got = pseudo_labels(
        probs, portion=0.5, rule="cbst+avh", embeddings=embeddings, class_weights=weights
    )
    assert got.tolist() == [-1, 0]


def test_the_label_is_the_largest_ratio_and_may_differ_from_the_prediction():
    rows = [[0.9, 0.05, 0.05], [0.45, 0.40, 0.15], [0.30, 0.38, 0.32], [0.31, 0.35, 0.34]]
    found = select(torch.tensor(rows), portion=0.5)
    assert found.predictions.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(found.thresholds, torch.tensor([0.9, 0.38, 1.0]))
    # the second: .45 / .9 = .5, .40 / .38 = 1.05; the last: .35 / .38 < 1
    assert found.labels.tolist() == [0, 1, 1, -1]


def test_where_classes_tie_the_lowest_is_predicted_and_given():
    found = select(torch.tensor([[0.2, 0.4, 0.4], [0.4, 0.4, 0.2]]), portion=1.0)
    assert found.predictions.tolist() == [1, 0]
    assert found.labels.tolist() == [1, 0]  # both ratios of the second are 1


def test_the_portion_of_each_class_is_kept_and_ties_are_kept_or_dropped_together():
    probs = torch.tensor([[0.9, 0.1]] * 3 + [[0.8, 0.2]] * 3 + [[0.3, 0.7]] * 2)
    assert pseudo_labels(probs, portion=0.5).tolist() == [0, 0, 0, -1, -1, -1, 1, 1]
    found = select(probs, portion=4 / 6)  # rank 4 is in the middle of a tie
    assert (found.ranks.tolist(), found.counts.tolist()) == ([4, 1], [6, 2])
    assert select(probs, portion=4 / 6, comparison=">").counts.tolist() == [3, 0]


def test_saturated_probabilities_are_kept_only_by_the_default_comparison():
    probs = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4)
    assert pseudo_labels(probs, portion=0.25).tolist() == [0] * 4 + [1] * 4
    assert pseudo_labels(probs, portion=0.25, comparison=">").tolist() == [-1] * 8


def test_a_class_with_too_few_predictions_starves_or_gets_one():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.0, 1.0]])
    starved = select(probs, portion=0.4)
    assert starved.labels.tolist() == [0, -1, -1, -1]  # also though a probability is exactly 1
    assert starved.ranks.tolist() == [1, 0]
    assert pseudo_labels(probs, portion=0.4, empty="one").tolist() == [0, -1, -1, 1]


@pytest.mark.parametrize("rule", RULES)
def test_a_class_that_is_never_predicted_is_never_given(rule):
    probs, embeddings, weights = made_up(classes=3, width=4)
    probs = torch.cat([probs * 0.7, torch.full((len(probs), 1), 0.3)], 1)
    probs[:, 3] *= (probs[:, :3].max(1).values > 0.3).float()  # never the largest
    probs = probs / probs.sum(1, keepdim=True)
    weights = torch.cat([weights, -embeddings.mean(0, keepdim=True) * 1e-3], 0)
    if rule == "avc":
        embeddings = embeddings.abs()
        weights = torch.cat([weights[:3].abs(), -torch.ones(1, 4)], 0)
    for empty in ("never", "one"):
        found = select(
            probs, portion=0.5, rule=rule, embeddings=embeddings, class_weights=weights, empty=empty
        )
        assert (found.predictions != 3).all()
        assert found.counts[3] == 0
        assert found.thresholds[3] == 1
        assert found.counts.sum() > 0


def test_nothing_selected_is_all_minus_one():
    found = select(torch.tensor([[0.6, 0.4], [0.4, 0.6]]), portion=0.5)
    assert found.labels.tolist() == [-1, -1]
    assert (found.counts.tolist(), found.selected.tolist()) == ([0, 0], [])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.34, 0.5, 0.8, 1.0]),
    st.sampled_from(["never", "one"]),
    st.booleans(),
)
def test_any_ties_and_empty_classes_give_the_labels_of_the_plain_rule(rows, portion, empty, strict):
    counts = torch.tensor(rows, dtype=torch.float64) + 1e-3 * torch.eye(3).double().sum(0)
    probs = counts / counts.sum(1, keepdim=True)
    dummy = torch.randn(len(rows), 2, generator=torch.Generator().manual_seed(0))
    for rule in ("cbst", "crst-lrent"):
        got = pseudo_labels(
            probs, portion=portion, rule=rule, empty=empty, comparison=">" if strict else ">="
        )
        wanted = by_hand(rule, probs, dummy, torch.eye(3)[:, :2] + 1, portion, empty=empty,
                         strict=strict)  # fmt: skip
        assert got.tolist() == wanted


@pytest.mark.parametrize("alpha", [0.05, 0.25, 0.4, 0.5, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("sharpness", [1.0, 4.0, 12.0])
def test_bounds_on_the_sum_over_classes_lose_no_example_at_any_temperature(alpha, sharpness):
    probs, embeddings, weights = made_up(n=600, classes=20, sharpness=sharpness)
    got = pseudo_labels(probs.double(), portion=0.3, rule="crst-lrent", alpha=alpha)
    assert got.tolist() == by_hand("crst-lrent", probs, embeddings, weights, 0.3, alpha=alpha)


@pytest.mark.parametrize("classes", [2, 4, 5, 30])
def test_angles_listed_in_the_first_pass_give_the_labels_of_all_angles(classes):
    # a few examples and portions make thresholds uneven, so labels often leave the prediction
    probs, embeddings, weights = made_up(n=150, classes=classes, width=3)
    for portion in (0.1, 0.5):
        got = pseudo_labels(
            probs.double(), portion=portion, rule="avc", embeddings=embeddings.double(),
            class_weights=weights.double(), empty="one",
        )  # fmt: skip
        assert got.tolist() == by_hand("avc", probs, embeddings, weights, portion, empty="one")


def test_twin_class_weights_tie_and_the_lower_class_is_given():
    weights = torch.eye(6)  # axes, whose products are exact
    weights[4] = weights[1]
    embeddings = torch.eye(6)[[0, 1, 1, 2, 3, 5]]
    probs = torch.full((6, 6), 1 / 6)
    found = select(probs, portion=1.0, rule="avc", embeddings=embeddings, class_weights=weights)
    assert found.predictions.tolist() == [0, 1, 1, 2, 3, 5]
    assert found.labels.tolist() == [0, 1, 1, 2, 3, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_with_a_minus_sign_is_a_probability_too(dtype):
    probs = torch.tensor([[-0.0, 0.3, 0.7], [0.6, 0.4, -0.0]], dtype=dtype)
    assert select(probs, portion=1.0).predictions.tolist() == [2, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_tiny_tiles_on_several_threads_give_exactly_the_labels_of_one_tile(
    rule, dtype, monkeypatch
):
    probs, embeddings, weights = made_up(n=1500, classes=11, width=6)
    probs, embeddings, weights = probs.to(dtype), embeddings.to(dtype), weights.to(dtype)

    def selected():
        return select(probs, portion=0.3, rule=rule, embeddings=embeddings, class_weights=weights)

    monkeypatch.setattr("hardsight.selftrain._rows._TILE_ENTRIES", 1 << 30)
    whole = selected()
    threads = torch.get_num_threads()
    monkeypatch.setattr("hardsight.selftrain._rows._LEAST_ROWS", 1)
    try:
        for entries, workers in ((11, 1), (11 * 7, 2), (11 * 64, 3)):
            monkeypatch.setattr("hardsight.selftrain._rows._TILE_ENTRIES", entries)
            torch.set_num_threads(workers)
            tiled = selected()
            assert torch.equal(tiled.labels, whole.labels)
            assert torch.equal(tiled.predictions, whole.predictions)
            if rule in ("cbst+avh", "avc"):  # a matrix product rounds by its shape
                torch.testing.assert_close(tiled.thresholds, whole.thresholds)
            else:
                assert torch.equal(tiled.thresholds, whole.thresholds)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rule", RULES)
def test_arrays_mapped_from_disk_give_exactly_the_labels_of_tensors(rule, tmp_path):
    tensors = dict(zip(("probs", "embeddings", "class_weights"), made_up(n=2000), strict=True))
    mapped = {}
    for name, tensor in tensors.items():
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    a = select(**tensors, portion=0.3, rule=rule)
    b = select(**mapped, portion=0.3, rule=rule)
    for name in ("labels", "predictions", "confidence", "thresholds", "label_thresholds", "ranks"):
        assert torch.equal(getattr(a, name), getattr(b, name))


def test_half_precision_is_widened_and_gradients_are_not_followed():
    probs, embeddings, weights = made_up()
    wide = probs.bfloat16().float()
    got = pseudo_labels(probs.bfloat16().requires_grad_(), portion=0.3)
    assert got.tolist() == by_hand("cbst", wide, embeddings, weights, 0.3)


def test_permuting_examples_permutes_labels():
    probs, embeddings, weights = made_up()
    order = torch.randperm(len(probs), generator=torch.Generator().manual_seed(1))
    for rule in RULES:
        options = {"portion": 0.3, "rule": rule, "class_weights": weights.double()}
        labels = pseudo_labels(probs, embeddings=embeddings.double(), **options)
        moved = pseudo_labels(probs[order], embeddings=embeddings[order].double(), **options)
        assert torch.equal(moved, labels[order])


def test_zero_embeddings_have_a_confidence_too():
    probs, embeddings, weights = made_up()
    embeddings[::10] = 0
    found = select(
        probs, portion=0.3, rule="cbst+avh", embeddings=embeddings, class_weights=weights
    )
    torch.testing.assert_close(found.confidence[::10], torch.full((40,), 1 / 7))


def test_probabilities_that_are_none_are_refused_with_their_row():
    good = torch.full((50, 4), 0.25)
    logits, holes, negative = good.clone(), good.clone(), good.clone()
    logits[30] = torch.tensor([3.0, 1.0, 0.0, -1.0])
    holes[40, 2] = math.nan
    negative[20] = torch.tensor([0.9, 0.2, -0.1, 0.0])
    with pytest.raises(ProbabilityError, match=r"row 30 has .* entry -1 and the sum 3. Apply soft"):
        pseudo_labels(logits, portion=0.5)
    with pytest.raises(NonFiniteError, match="probs hold NaN, first in row 40"):
        pseudo_labels(holes, portion=0.5)
    with pytest.raises(ProbabilityError, match=r"row 20 has the smallest entry -0.1"):
        pseudo_labels(negative, portion=0.5)
    with pytest.raises(ProbabilityError, match=r"row 0 .* the sum 0.5"):
        pseudo_labels(good / 2, portion=0.5)
    endless = torch.tensor([[math.inf, 0.0], [0.5, 0.5]])
    with pytest.raises(ProbabilityError, match=r"row 0 .* the sum inf"):  # and no warning first
        pseudo_labels(endless, portion=0.5)


def test_a_bad_row_far_down_is_found_and_named_with_threads(monkeypatch):
    monkeypatch.setattr("hardsight.selftrain._rows._TILE_ENTRIES", 16)
    probs = torch.full((5000, 4), 0.25)
    probs[4321, 0] = 2.0
    probs[4700, 0] = 3.0
    with pytest.raises(ProbabilityError, match=r"row 4,321 has"):
        pseudo_labels(probs, portion=0.5)


def test_selection_refuses_shapes_and_words_it_does_not_know():
    probs, embeddings, weights = made_up(n=10)
    with pytest.raises(UnknownNameError, match=r"unknown rule 'cbts'. Did you mean 'cbst'"):
        pseudo_labels(probs, portion=0.5, rule="cbts")
    with pytest.raises(OptionError, match=r"portion in \(0, 1\].* got 20"):
        pseudo_labels(probs, portion=20)
    with pytest.raises(OptionError, match="unknown empty 'all'"):
        pseudo_labels(probs, portion=0.5, empty="all")
    with pytest.raises(OptionError, match="unknown comparison '<'"):
        pseudo_labels(probs, portion=0.5, comparison="<")
    with pytest.raises(OptionError, match="alpha to be positive, got 0"):
        pseudo_labels(probs, portion=0.5, alpha=0)
    with pytest.raises(ShapeError, match=r"'cbst[+]avh' needs angles: pass class_weights too"):
        pseudo_labels(probs, portion=0.5, rule="cbst+avh", embeddings=embeddings)
    with pytest.raises(ShapeError, match="pass embeddings and class_weights too"):
        pseudo_labels(probs, portion=0.5, rule="avc")
    with pytest.raises(ShapeError, match=r"embeddings \[9, 5\]"):
        pseudo_labels(
            probs, portion=0.5, rule="avc", embeddings=embeddings[:9], class_weights=weights
        )
    with pytest.raises(ShapeError, match=r"at least 1 row and 1 column, got \[0, 7\]"):
        pseudo_labels(probs[:0], portion=0.5)
    with pytest.raises(ShapeError, match=r"probs to be a matrix .* got \[10\]"):
        pseudo_labels(probs[:, 0], portion=0.5)
    with pytest.raises(ShapeError, match=r"floating point, got torch.int64"):
        pseudo_labels(probs.long(), portion=0.5)
    embeddings[3, 1] = math.nan
    with pytest.raises(NonFiniteError, match=r"NaN or infinity \(see row 3\)"):
        pseudo_labels(probs, portion=0.5, rule="avc", embeddings=embeddings, class_weights=weights)


def test_soft_labels_worked_by_hand():
    # ratios .6/.5 and .4/.8 = 1.2 and .5; alpha .5: 1.44 and .25 over 1.69
    got = soft_pseudo_labels(torch.tensor([[0.6, 0.4]]), torch.tensor([0.5, 0.8]), alpha=0.5)
    torch.testing.assert_close(got, torch.tensor([[1.44 / 1.69, 0.25 / 1.69]]))


def test_soft_labels_survive_small_temperatures_and_zero_probabilities():
    probs, thresholds = torch.tensor([[1.0, 0.0], [0.7, 0.3]]), torch.tensor([0.9, 0.1])
    got = soft_pseudo_labels(probs, thresholds, alpha=1e-4)
    torch.testing.assert_close(got, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


def test_soft_labels_peak_at_the_pseudo_label():
    probs, _, _ = made_up()
    found = select(probs, portion=0.4, rule="crst-lrent")
    soft = soft_pseudo_labels(probs, found.thresholds)
    torch.testing.assert_close(soft.sum(1), torch.ones(len(probs)))
    assert torch.equal(soft.argmax(1)[found.selected], found.labels[found.selected])


def test_training_on_a_selected_soft_label_costs_less_than_leaving_it_out():
    # CRST's own criterion: sum y (-log p + alpha log y) < -sum y log lambda
    probs, _, _ = made_up(sharpness=2.0)
    probs = probs.double()
    found = select(probs, portion=0.3, rule="crst-lrent")
    soft = soft_pseudo_labels(probs, found.thresholds)
    cost = (soft * (0.25 * soft.log() - probs.log())).sum(1)
    gain = -(soft * found.thresholds.log()).sum(1)
    ranked_class = found.ranks[soft.argmax(1)] > 0
    clear = (cost - gain).abs() > 1e-9
    wanted = (cost < gain) & ranked_class
    assert torch.equal(wanted[clear], (found.labels >= 0)[clear])


def test_soft_labels_refuse_what_does_not_fit():
    probs = torch.tensor([[0.6, 0.4]])
    with pytest.raises(ShapeError, match=r"probs \[1, 2\], thresholds \[3\]"):
        soft_pseudo_labels(probs, torch.ones(3))
    with pytest.raises(OptionError, match="positive thresholds, got 0"):
        soft_pseudo_labels(probs, torch.tensor([0.0, 1.0]))
    with pytest.raises(OptionError, match="alpha to be positive, got -1"):
        soft_pseudo_labels(probs, torch.ones(2), alpha=-1)


def test_lists_are_taken_as_well():
    assert pseudo_labels([[0.9, 0.1], [0.4, 0.6]], portion=1.0).tolist() == [0, 1]
    rows = [[1.0, 0.0], [0.0, 1.0]]
    for rule in ("cbst+avh", "avc"):
        found = pseudo_labels(
            [[0.9, 0.1], [0.4, 0.6]], portion=1.0, rule=rule, embeddings=rows, class_weights=rows
        )
        assert found.tolist() == [0, 1]


def test_soft_labels_of_arrays_and_lists_are_those_of_tensors():
    probs, thresholds = torch.tensor([[0.6, 0.4], [0.1, 0.9]]), torch.tensor([0.5, 0.8])
    wanted = soft_pseudo_labels(probs, thresholds)
    torch.testing.assert_close(soft_pseudo_labels(probs.numpy(), thresholds.numpy()), wanted)
    listed = soft_pseudo_labels(probs.tolist(), thresholds.tolist())
    torch.testing.assert_close(listed, wanted, check_dtype=False)
    swapped = probs.numpy().astype(">f4")
    torch.testing.assert_close(soft_pseudo_labels(swapped, thresholds), wanted)


def test_angles_of_arrays_in_another_byte_order_are_those_of_tensors():
    probs, embeddings, weights = made_up(12, 3, 4)
    wanted = pseudo_labels(
        probs, portion=0.5, rule="avc", embeddings=embeddings, class_weights=weights
    )
    swapped = {"embeddings": embeddings.numpy().astype(">f4"),
               "class_weights": weights.numpy().astype(">f4")}  # fmt: skip
    assert pseudo_labels(probs, portion=0.5, rule="avc", **swapped).tolist() == wanted.tolist()


@pytest.mark.skipif(np.longdouble(0).itemsize == 8, reason="long double is float64 here")
def test_longer_floats_than_torch_has_are_refused_with_what_to_convert_them_to():
    probs = np.full((4, 2), 0.5, dtype=np.longdouble)
    said = r"expected probs to be numbers of at most 64 bits, got \S+; .*astype\('float64'\)"
    with pytest.raises(ShapeError, match=said):
        soft_pseudo_labels(probs, [0.5, 0.5])
    with pytest.raises(ShapeError, match=said):
        select(probs, portion=0.5)
    with pytest.raises(ShapeError, match=said):
        selection_quality([0, 1, 0, 1], num_classes=2, probs=probs)
    with pytest.raises(ShapeError, match="expected confidence to be numbers of at most 64 bits"):
        class_thresholds(probs[:, 0], np.zeros(4, dtype=int), 2, portion=0.5)
    with pytest.raises(ShapeError, match="expected embeddings to be numbers of at most 64 bits"):
        select(probs.astype(float), portion=0.5, rule="avc", embeddings=probs,
               class_weights=np.eye(2))  # fmt: skip
