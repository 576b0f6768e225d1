from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput

from hardsight.errors import HeadError, HeadMismatchError, HeadNotFoundError, ModelError
from hardsight.heads import capture, find_head, find_output, logits_of

LOGITS = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, LOGITS + 1),
        [LOGITS],
        (torch.tensor(0.5), LOGITS),
        (torch.zeros(2, 3, dtype=torch.long), LOGITS),
        {"logits": LOGITS, "features": torch.ones(2, 8)},
        {"loss": torch.tensor(0.5), "out": LOGITS},
        ImageClassifierOutput(loss=torch.tensor(0.5), logits=LOGITS),
        SimpleNamespace(logits=LOGITS, features=torch.ones(2, 8)),
    ],
    ids=lambda output: type(output).__name__,
)
def test_logits_are_taken_out_of_every_usual_output(output):
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            {"a": LOGITS, "b": LOGITS},
            r"got dict with several tensors .*'a' \[2, 3\], 'b' \[2, 3\]; pass output='b'",
        ),
        ({}, r"got dict: no tensor .*wrap the model"),
        ((torch.tensor(0.5),), "got tuple with 0: no tensor .*wrap the model"),
        ("text", "got str: no tensor .*wrap the model"),
        (None, "got NoneType: no tensor .*wrap the model"),
    ],
)
def test_an_output_without_clear_logits_says_what_it_holds(output, message):
    with pytest.raises(ModelError, match=message):
        logits_of(output)


@dataclass
class Answer:
    features: torch.Tensor
    scores: torch.Tensor


FEATURES = torch.ones(2, 8)


@pytest.mark.parametrize(
    ("output", "which"),
    [
        ((FEATURES, LOGITS), 1),
        ((FEATURES, LOGITS), -1),
        ((FEATURES, LOGITS), "1"),
        ({"features": FEATURES, "scores": LOGITS}, "scores"),
        ({"features": FEATURES, "scores": LOGITS}, 1),
        (Answer(FEATURES, LOGITS), "scores"),
        (SimpleNamespace(features=FEATURES, scores=LOGITS), "scores"),
        (ImageClassifierOutput(logits=FEATURES, hidden_states=LOGITS), "hidden_states"),
    ],
)
def test_the_output_that_is_meant_can_be_named(output, which):
    assert logits_of(output, which) is LOGITS


@pytest.mark.parametrize(
    ("output", "which", "message"),
    [
        (
            (FEATURES, LOGITS),
            2,
            r"output=2 is not there .*, a tuple of 0 \[2, 8\], 1 \[2, 3\]",
        ),
        ({"a": LOGITS, "n": 3}, "n", r"output='n' is not a tensor .* 'a' \[2, 3\], 'n' int"),
        (LOGITS, "logits", r"the model returns one tensor \[2, 3\]; leave output out"),
    ],
)
def test_a_wrong_name_of_an_output_is_answered_with_what_there_is(output, which, message):
    with pytest.raises(ModelError, match=message):
        logits_of(output, which)


class Pair(nn.Module):
    """Returns its features and its logits, in an order."""

    def __init__(self, order=lambda features, logits: (features, logits), width=8) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(6, width), nn.Linear(width, 3)
        self.order = order

    def forward(self, x):
        features = self.body(x)
        return self.order(features, self.fc(features))


@pytest.mark.parametrize(
    "order",
    [
        lambda features, logits: (features, logits),
        lambda features, logits: {"features": features, "out": logits},
        lambda features, logits: Answer(features, logits),
    ],
    ids=["tuple", "dict", "dataclass"],
)
def test_of_several_outputs_the_one_with_the_datas_classes_holds_the_logits(order):
    model, x = Pair(order), torch.randn(4, 6)
    head = find_head(model, x, num_classes=3)
    assert head.name == "fc"
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, logits = forward(x)
    torch.testing.assert_close(embeddings, model.body(x).detach())
    torch.testing.assert_close(logits, model.fc(model.body(x)).detach())


@pytest.mark.parametrize("num_classes", [None, 3, 8])
@pytest.mark.parametrize("width", [3, 8])
def test_what_a_head_turns_into_another_output_is_not_taken_for_the_logits(num_classes, width):
    model, x = Pair(width=width), torch.randn(4, 6)
    assert find_head(model, x, num_classes=num_classes).name == "fc"
    assert find_output(model, x, num_classes=num_classes) == 1
    assert find_head(model, x, output=0).name == "body"


class Auxiliary(nn.Module):
    """Two heads, of the same size or not."""

    def __init__(self, other=3) -> None:
        super().__init__()
        self.fc, self.aux = nn.Linear(6, 3), nn.Linear(6, other)

    def forward(self, x):
        return self.aux(x.tanh()), self.fc(x)


def test_several_outputs_that_could_be_the_logits_are_refused_with_their_shapes():
    x = torch.randn(4, 6)
    for find in (find_head, find_output):
        with pytest.raises(
            ModelError, match=r": 0 \[4, 3\], 1 \[4, 3\]; pass output=1 \(--output 1"
        ):
            find(Auxiliary(), x, num_classes=3)
        with pytest.raises(ModelError, match=r"several tensors .*: 0 \[4, 5\], 1 \[4, 3\]; pass"):
            find(Auxiliary(other=5), x)
    assert find_head(Auxiliary(), x, output=1).name == "fc"
    assert find_head(Auxiliary(other=5), x, num_classes=3).name == "fc"
    assert find_output(Auxiliary(), x, output="0") == "0"


def test_an_output_with_the_datas_classes_gives_way_if_only_another_one_has_a_head():
    class Detached(nn.Module):
        """Its features are returned after they were changed, and have five columns by chance."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(6, 5), nn.Linear(5, 8)

        def forward(self, x):
            features = self.body(x).relu()
            return features.sqrt(), self.fc(features)

    with pytest.raises(ModelError, match=r"0 \[4, 5\], 1 \[4, 8\]"):
        find_head(Detached(), torch.randn(4, 6), num_classes=5)


@dataclass
class Parts:
    heads: object
    features: torch.Tensor


NESTED = {
    "dict": (lambda features, logits: {"a": {"logits": logits}, "f": features}, "a.logits"),
    "tuple": (lambda features, logits: (features, (logits, None)), "1.0"),
    "list": (lambda features, logits: [[features, logits]], "0.1"),
    "dataclass": (lambda features, logits: Parts({"out": [logits]}, features), "heads.out.0"),
    "number": (lambda features, logits: {7: {"out": logits}, "f": features}, "7.out"),
    "hugging face": (
        lambda features, logits: (ImageClassifierOutput(logits=logits), features),
        "0.logits",
    ),
}


@pytest.mark.parametrize("form", NESTED)
@pytest.mark.parametrize("changed", [False, True], ids=["features", "changed features"])
def test_a_nested_output_with_the_datas_classes_holds_the_logits(form, changed):
    order, name = NESTED[form]
    # what is returned beside the logits need not be what enters the head
    model = Pair(lambda features, logits: order(features.sinh() if changed else features, logits))
    x = torch.randn(4, 6)
    assert find_output(model, x, num_classes=3) == name
    head = find_head(model, x, num_classes=3)
    assert (head.name, head.reading.output) == ("fc", name)
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, logits = forward(x)
    torch.testing.assert_close(embeddings, model.body(x).detach())
    torch.testing.assert_close(logits, model.fc(model.body(x)).detach())
    assert find_head(model, x, output=name).name == "fc"


def test_several_nested_outputs_that_could_be_the_logits_are_refused_with_their_paths():
    x = torch.randn(4, 6)
    model = Pair(lambda features, logits: {"a": {"x": logits}, "b": [logits.tanh()]})
    for find in (find_head, find_output):
        with pytest.raises(
            ModelError,
            match=r"'a\.x' \[4, 3\], 'b\.0' \[4, 3\]; pass output='b\.0' \(--output b\.0\)",
        ):
            find(model, x, num_classes=3)
    assert find_output(model, x, num_classes=3, output="a.x") == "a.x"


def test_a_nested_auxiliary_head_of_the_same_size_is_not_passed_over():
    class Nested(Auxiliary):
        def forward(self, x):
            aux, logits = super().forward(x)
            return logits, {"aux": aux}

    with pytest.raises(ModelError, match=r"0 \[4, 3\], '1\.aux' \[4, 3\]; pass output='1\.aux'"):
        find_head(Nested(), torch.randn(4, 6), num_classes=3)
    assert find_head(Nested(), torch.randn(4, 6), output=0).name == "fc"
    # with another number of classes only one of them is the data's
    assert find_head(Nested(other=5), torch.randn(4, 6), num_classes=3).name == "fc"


def test_the_same_tensor_under_two_names_is_not_a_doubt():
    model, x = Pair(lambda features, logits: (logits, {"z": logits})), torch.randn(4, 6)
    assert find_output(model, x, num_classes=3) == 0


def test_what_is_nested_does_not_stand_in_the_way_of_logits_called_so():
    nested = {"logits": LOGITS, "aux": {"logits": LOGITS + 1}, "states": (FEATURES, FEATURES)}
    assert logits_of(nested) is LOGITS
    # maps and tokens cannot be the logits
    states = (torch.ones(2, 5, 8), torch.ones(2, 5, 8))
    assert logits_of({"out": LOGITS, "states": states}) is LOGITS
    assert logits_of((LOGITS, {"aux": LOGITS + 1})) is LOGITS


def test_without_data_to_choose_by_nested_outputs_leave_a_doubt():
    for output in ({"a": {"logits": LOGITS}, "f": FEATURES}, ({"logits": LOGITS}, FEATURES)):
        with pytest.raises(ModelError, match=r"several tensors .*logits' \[2, 3\]"):
            logits_of(output)
    assert logits_of({"a": {"b": (None, LOGITS)}}) is LOGITS


@pytest.mark.parametrize(
    ("output", "which"),
    [
        ({"a": {"logits": LOGITS}, "f": FEATURES}, "a.logits"),
        ({"a": {"logits": LOGITS}, "f": FEATURES}, "0.0"),
        ((FEATURES, [FEATURES, LOGITS]), "1.-1"),
        ({"a.b": LOGITS, "a": {"b": FEATURES}}, "a.b"),
        ({"a.b": {"c": LOGITS}, "a": FEATURES}, "a.b.c"),
        ({"a": SimpleNamespace(scores=LOGITS)}, "a.scores"),
        ({3: {"logits": LOGITS}, "f": FEATURES}, "3.logits"),
    ],
)
def test_a_nested_output_is_named_by_its_path(output, which):
    assert logits_of(output, which) is LOGITS


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("a.scores", r"output='a\.scores' is not there .*, a dict of 'a\.logits' \[2, 3\], 'f'"),
        ("a", r"output='a' is not a tensor .*'a\.logits' \[2, 3\], 'f' \[2, 8\]"),
        ("f.logits", r"output='f\.logits' is not there"),
        ("a.logits.0", r"output='a\.logits\.0' is not there"),
    ],
)
def test_a_wrong_path_is_answered_with_those_there_are(which, message):
    with pytest.raises(ModelError, match=message):
        logits_of({"a": {"logits": LOGITS}, "f": FEATURES}, which)


def test_an_output_that_holds_itself_ends():
    output = {"out": LOGITS}
    output["again"] = output
    assert logits_of(output) is LOGITS


class Einsum(nn.Module):
    def __init__(self, *, transposed=False, bias=False, identity=True, nested=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.classifier_weight = nn.Parameter(torch.randn((8, 3) if transposed else (3, 8)))
        self.classifier_bias = nn.Parameter(torch.randn(3)) if bias else None
        self.embeddings = nn.Identity() if identity else None
        self.equation = "bd,dc->bc" if transposed else "bd,cd->bc"

    def forward(self, x):
        features = torch.tanh(self.body(x))
        features = features if self.embeddings is None else self.embeddings(features)
        logits = torch.einsum(self.equation, features, self.classifier_weight)
        return logits if self.classifier_bias is None else logits + self.classifier_bias


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_bare_parameter_is_a_head_by_its_name(transposed, bias):
    model, x = Einsum(transposed=transposed, bias=bias), torch.randn(4, 6)
    head = find_head(model, x, name="classifier_weight")
    assert (head.name, list(head.weight.shape)) == ("classifier_weight", [3, 8])
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, logits = forward(x)
    torch.testing.assert_close(embeddings, torch.tanh(model.body(x)).detach())
    product = embeddings @ head.weight.T
    torch.testing.assert_close(product if head.bias is None else product + head.bias, logits)
    assert (head.bias is not None) == bias


def test_features_that_enter_the_module_with_the_parameter_are_its_embeddings():
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prototypes = nn.Parameter(torch.randn(3, 8))

        def forward(self, maps):
            return torch.einsum("bdhw,cd->bchw", maps, self.prototypes).mean((2, 3))

    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), Scores())
    x = torch.randn(4, 1, 6, 6)
    head = find_head(model, x, name="2.prototypes")
    with torch.no_grad(), capture(model, head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, model[:2](x).mean((2, 3)).detach())


def test_embeddings_that_pass_no_module_are_asked_for():
    with pytest.raises(HeadMismatchError, match=r"enters or leaves a module .*nn\.Identity\(\)"):
        find_head(Einsum(identity=False), torch.randn(4, 6), name="classifier_weight")


def test_a_bare_parameter_of_another_size_is_refused_with_its_shape():
    model = Einsum()
    model.other = nn.Parameter(torch.randn(5, 7))
    with pytest.raises(HeadNotFoundError, match=r"'other' of Einsum is \[5, 7\].* 3 columns"):
        find_head(model, torch.randn(4, 6), name="other")


def test_a_model_without_a_linear_head_is_told_of_its_bare_parameters():
    with pytest.raises(HeadNotFoundError, match=r"head=\"classifier_weight\""):
        find_head(Einsum(), torch.randn(4, 6))


def test_a_bare_parameter_is_verified_on_the_first_batch_too():
    model, x = Einsum(), torch.randn(4, 6)
    with torch.no_grad(), capture(model, find_head(model, name="classifier_weight")) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, torch.tanh(model.body(x)).detach())


class FeaturesAndEnsemble(nn.Module):
    """Features that a linear layer makes, as wide as the logits that two heads make of them."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = nn.Linear(7, 5), nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        features = self.body(x)
        return features, self.head(features) + self.other(features)


def test_features_are_not_taken_for_logits_because_a_layer_made_them():
    net, inputs = FeaturesAndEnsemble(), torch.rand(6, 7)
    with pytest.raises(ModelError, match="several tensors that could be its logits"):
        find_head(net, inputs, num_classes=2)
    with pytest.raises(HeadError):  # no single layer makes these
        find_head(net, inputs, num_classes=2, output=1)
