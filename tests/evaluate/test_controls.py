"""Controls: naive twins of the static choices, and random routes that differ in routes only."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from laval.evaluate import (
    block_influence,
    greedy_layers,
    perplexity,
    random_control,
    random_routes,
    rate_for,
    shortgpt_layers,
    text_batches,
)
from laval.evaluate.text import as_batch
from laval.models import attach
from laval.skip import DropLayers
from tests.evaluate.models import routed, some_text
from tests.tiny import tiny_model

PADDED = {
    "input_ids": some_text(24).view(2, 12),
    "attention_mask": torch.tensor([[0] * 5 + [1] * 7, [1] * 12]),
}


@torch.no_grad()
def naive_influence(model, batches) -> list[float]:
    """From all hidden states kept at once, token by token."""
    values, keep = [], []
    for part in [*model.model.layers, model.model.norm]:
        part.register_forward_pre_hook(lambda _, inputs: keep.append(inputs[0]))
    for batch in map(as_batch, batches):
        keep.clear()
        model(**batch.arguments)
        states = torch.stack(keep)[:, batch.valid].double()  # [L + 1, N, D]
        states = states / states.norm(dim=-1, keepdim=True)
        values.append(1 - (states[1:] * states[:-1]).sum(-1))
    return torch.cat(values, dim=1).mean(1).tolist()


def test_block_influence_is_the_full_computation():
    model = tiny_model("llama")
    batches = [some_text(30).view(2, 15), PADDED]
    found = block_influence(model, batches, progress=False)
    assert found == pytest.approx(naive_influence(model, batches), abs=1e-6)
    order = sorted((1, 2, 3), key=lambda layer: found[layer])
    assert shortgpt_layers(model, batches, 2, progress=False) == tuple(order[:2])


def loss_without(model, dropped, batches) -> float:
    total = 0.0
    dropping = attach(model, DropLayers(tuple(dropped))).eval()
    for batch in map(as_batch, batches):
        with torch.no_grad():
            logits = dropping(**batch.arguments).logits.double()
        nats = -logits.log_softmax(-1).gather(-1, batch.targets[..., None]).squeeze(-1)
        total += float(nats[batch.scored].sum())
    return total


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_greedy_is_brute_force_step_by_step(family):
    model = tiny_model(family)
    batches = [some_text(30).view(2, 15), PADDED]
    expected: list[int] = []
    for _ in range(2):
        left = [layer for layer in (1, 2, 3) if layer not in expected]
        expected.append(min(left, key=lambda layer: loss_without(model, [*expected, layer], batches)))
    assert greedy_layers(model, batches, 2, progress=False) == tuple(expected)
    assert greedy_layers(attach(model, DropLayers((2,))), batches, 3, progress=False)[:2] == tuple(expected)


def test_too_many_layers_to_drop():
    for choose in (shortgpt_layers, greedy_layers):
        with pytest.raises(ValueError, match="drop is 4"):
            choose(tiny_model("llama"), [some_text().view(1, -1)], 4, progress=False)
    with pytest.raises(ValueError, match="batches is empty"):
        block_influence(tiny_model("llama"), [], progress=False)


@pytest.mark.parametrize("gate", ["hard_mask", "released"])
@torch.no_grad()
def test_random_routes_differ_in_routes_only(gate):
    model, ids = routed(gate=gate), some_text(32).view(2, 16)
    control = random_control(model, 2.5, seed=1)
    assert control.base is model.base and control.policy.learned is model.policy
    taken = control(input_ids=ids).routes
    replayed = model(input_ids=ids, routes=torch.stack([route.run for route in taken]))
    torch.testing.assert_close(control(input_ids=ids).logits, replayed.logits, rtol=0, atol=0)
    own = model(input_ids=ids).routes
    assert any(not torch.equal(a.run, b.run) for a, b in zip(own, taken, strict=True))
    other = random_control(model, 2.5, seed=2)(input_ids=ids).routes
    assert any(not torch.equal(a.run, b.run) for a, b in zip(other, taken, strict=True))


@pytest.mark.parametrize(("depth", "seed"), list(product([1, 1.7, 2.5, 4], [0, 5])))
def test_random_routes_have_the_wanted_depth(depth, seed):
    model, ids = routed(), some_text(97)
    exact = perplexity(random_control(model, depth, seed, length=32), ids, length=32, progress=False)
    assert exact.mean_depth == pytest.approx(depth, abs=1 / 32)
    assert rate_for(model, depth) == pytest.approx((depth - 1) / 3)


def test_depths_out_of_reach_and_rates_out_of_range():
    with pytest.raises(ValueError, match="expected 1 to 4 layers"):
        random_control(routed(), 0.5)
    with pytest.raises(ValueError, match="rate is 1.5"):
        random_routes(routed().policy, 1.5)


def test_windows_serve_as_calibration_batches():
    batches = text_batches(some_text(), length=16, batch=3)
    assert [tuple(batch.ids.shape) for batch in batches] == [(3, 16), (1, 12)]
    assert len(block_influence(tiny_model("qwen3"), batches, progress=False)) == 4
