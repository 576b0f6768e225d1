import threading

import pytest
import torch
from torch import Tensor, nn

from hardsight.errors import HeadMismatchError, HeadNotFoundError, ModelError
from hardsight.heads import Head, capture, find_head


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_capture_returns_what_enters_the_head_and_what_leaves_the_model(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    with capture(model, find_head(model, x)) as forward:
        embeddings, logits = forward(x)
        later, _ = forward(x[:2])
    torch.testing.assert_close(embeddings, model.body(x).relu())
    torch.testing.assert_close(logits, model(x))
    torch.testing.assert_close(later, embeddings[:2])


def test_one_hook_serves_the_whole_block_and_is_removed_after_it(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    with capture(model, find_head(model, x)) as forward:
        forward(x)
        assert hooks(model) == 1
        forward(x)
        assert hooks(model) == 1
    assert hooks(model) == 0


def test_the_hook_is_removed_after_an_error_in_the_model_and_in_the_block(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    head = find_head(model, x)
    with pytest.raises(RuntimeError, match="shapes"), capture(model, head) as forward:
        forward(torch.randn(5, 7))
    assert hooks(model) == 0
    with pytest.raises(KeyError), capture(model, head):
        raise KeyError("of the caller")
    assert hooks(model) == 0


def test_a_failed_batch_does_not_mix_with_the_next_one(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    broken = {"on": True}

    def fail_once(logits: Tensor) -> Tensor:
        if broken.pop("on", False):
            raise RuntimeError("once")
        return logits

    with capture(model, find_head(model, x)) as forward:
        model.wrap = fail_once
        with pytest.raises(RuntimeError, match="once"):
            forward(x)
        embeddings, _ = forward(x[:2])
    assert embeddings.shape == (2, 8)


def test_gradients_reach_the_body_through_the_embeddings(two_layers):
    model, x = two_layers().train(), torch.randn(5, 6)
    with capture(model, find_head(model, x)) as forward:
        embeddings, _ = forward(x)
    embeddings.sum().backward()
    assert float(model.body.weight.grad.abs().sum()) > 0
    assert model.training


def test_without_gradient_the_embeddings_carry_none(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    with torch.inference_mode(), capture(model, find_head(model, x)) as forward:
        embeddings, logits = forward(x)
    assert not embeddings.requires_grad
    assert not logits.requires_grad


def test_capture_works_under_autocast(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    head = find_head(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16), capture(model, head) as forward:
        embeddings, logits = forward(x)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(embeddings.float(), model.body(x).relu(), rtol=0.05, atol=0.05)


def test_a_model_compiled_and_run_before_is_captured_in_compiled_form(two_layers):
    graphs = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        graphs.append(graph)
        return graph.forward

    model, x = two_layers(), torch.randn(5, 6)
    compiled = torch.compile(model, backend=counting, fullgraph=True)
    compiled(x)
    before = len(graphs)
    with capture(compiled, find_head(compiled, x)) as forward:
        embeddings, logits = forward(x)
        assert len(graphs) == before + 1  # once, by the settings the user compiled with
        forward(x)
        assert len(graphs) == before + 1
    torch.testing.assert_close(embeddings, model.body(x).relu())
    torch.testing.assert_close(logits, model(x))


def test_a_part_compiled_before_that_holds_the_head_falls_back_to_eager(two_layers):
    inner, x = two_layers(), torch.randn(5, 6)
    model = nn.Sequential(nn.Identity(), torch.compile(inner, backend="eager"))
    model(x)
    head = find_head(model, x)
    with capture(model, head) as forward:
        embeddings, _ = forward(x)
    torch.testing.assert_close(embeddings, inner.body(x).relu())


def test_an_unverified_head_is_verified_on_the_first_batch(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    head = find_head(model, name="fc")
    assert head.reading is None
    with capture(model, head) as forward:
        torch.testing.assert_close(forward(x)[0], model.body(x).relu())
    model.wrap = torch.sigmoid
    with (
        capture(model, head) as forward,
        pytest.raises(HeadMismatchError, match="sigmoid of layer 'fc'"),
    ):
        forward(x)
    assert hooks(model) == 0


def test_a_head_made_by_hand_serves_where_it_names_a_layer(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    by_hand = Head(name="fc", weight=model.fc.weight.detach())
    with capture(model, by_hand) as forward:
        torch.testing.assert_close(forward(x)[0], model.body(x).relu())
    stored = Head(name="stored", weight=torch.ones(3, 8))
    with (
        pytest.raises(HeadNotFoundError, match="unknown layer of TwoLayers 'stored'"),
        capture(model, stored),
    ):
        pass


def test_a_layer_that_is_not_called_any_more_is_an_error(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    head = find_head(model, x)
    model.forward = lambda x: model.body(x)
    with (
        capture(model, head) as forward,
        pytest.raises(HeadMismatchError, match="'fc' of TwoLayers was called fewer times"),
    ):
        forward(x)


def test_logits_must_have_one_row_per_example(two_layers):
    model, x = two_layers(), torch.randn(5, 6)
    head = find_head(model, x)
    model.wrap = lambda logits: logits[:, None].expand(5, 4, 3)
    with capture(model, head) as forward, pytest.raises(ModelError, match=r"got \[5, 4, 3\]"):
        forward(x)


def test_replicas_on_several_devices_are_joined_in_the_order_of_the_batch():
    from hardsight.heads._capture import _ModuleCall, _Recorder
    from hardsight.heads._head import Reading

    recorder = _Recorder(Reading(), width=3)
    first, second = torch.ones(2, 1, 3), torch.zeros(1, 1, 3)
    cpu, meta = torch.device("cpu"), torch.device("meta")
    recorder._calls = {
        meta: [_ModuleCall(second, None, None)],
        cpu: [_ModuleCall(first, None, None)],
    }
    torch.testing.assert_close(recorder.seen([cpu, meta]).tokens, torch.cat([first, second]))
    recorder._reading = Reading(call=1)
    assert recorder.seen([cpu, meta]) is None


def test_threads_with_models_of_their_own_do_not_meet(two_layers):
    x, results = torch.randn(5, 6), {}

    def work(number: int) -> None:
        model = two_layers()
        with torch.no_grad(), capture(model, find_head(model, x)) as forward:
            results[number] = all(
                torch.equal(forward(x)[0], model.body(x).relu()) for _ in range(20)
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: True for number in range(4)}
