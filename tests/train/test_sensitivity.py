"""Measured sensitivity against the exact Fisher form, by forward-mode derivatives."""

from __future__ import annotations

import pytest
import torch

from laval.blocks import backbone_of
from laval.train import sensitivity as module
from laval.train.sensitivity import sensitivity
from tests.tiny import tiny_model
from tests.train.runs import batch

LAYERS = (1, 2, 3)


def states_of(backbone, ids):
    x = backbone.embed(ids)
    states, contexts = [x], backbone.contexts(x)
    for block, context in zip(backbone.blocks, contexts, strict=True):
        states.append(block(states[-1], context))
    return states, contexts


@torch.no_grad()
def exact(backbone, ids, layer: int) -> float:
    """1/2 sum_s Var_p(dlogits_s) for the update of one token at a time, over its relative size; mean over tokens."""
    states, contexts = states_of(backbone, ids)
    before, after = states[layer], states[layer + 1]

    def rest(x):
        for block, context in zip(backbone.blocks[layer + 1 :], contexts[layer + 1 :], strict=True):
            x = block(x, context)
        return backbone.head(x)

    p, cost = rest(after).softmax(-1), []
    for t in range(1, ids.shape[1]):
        tangent = torch.zeros_like(after)
        tangent[:, t] = (after - before)[:, t]
        _, moved = torch.func.jvp(rest, (after,), (tangent,))  # [B, T, V]
        variance = (p * moved.square()).sum(-1) - (p * moved).sum(-1).square()  # [B, T]
        cost.append(0.5 * variance.sum(-1))
    change = (after - before).square().sum(-1) / after.square().sum(-1)
    return (torch.stack(cost).mean() / change[:, 1:].mean()).item()


def test_it_is_the_fisher_form_of_the_update(monkeypatch):
    monkeypatch.setattr(module, "DEAREST", float("inf"))
    model = tiny_model("llama", torch.float64, attn_implementation="eager", initializer_range=0.05)
    backbone, ids = backbone_of(model.requires_grad_(False)), batch(4, 6)
    many = ids.repeat(256, 1)
    measured = sensitivity(backbone, [many] * 3, LAYERS)
    for layer in LAYERS:
        assert measured[layer] == pytest.approx(exact(backbone, ids, layer), rel=0.05)


def test_no_gradient_is_left_behind():
    model = tiny_model("llama")  # not frozen
    with torch.no_grad():
        sensitivity(backbone_of(model), [batch()], LAYERS)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_seed_decides():
    backbone = backbone_of(tiny_model("llama"))
    first, again, other = (sensitivity(backbone, [batch()], LAYERS, seed) for seed in (0, 0, 1))
    assert first == again != other and set(first) == set(LAYERS)


def test_the_heavy_tail_is_cut(monkeypatch):
    backbone = backbone_of(tiny_model("llama"))
    whole = sensitivity(backbone, [batch()], LAYERS)
    monkeypatch.setattr(module, "DEAREST", 1e-3)
    assert all(cut < whole[layer] for layer, cut in sensitivity(backbone, [batch()], LAYERS).items())
