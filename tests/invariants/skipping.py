"""What must hold for every skipping method: its runtimes agree, and what it decided can be replayed."""

from __future__ import annotations

from copy import deepcopy
from unittest import mock

import torch

from laval.models import dense, recording, using
from laval.models.switches import depth_of
from laval.report import Trace
from laval.skip import Route
from tests.invariants.harness import PADS, assert_near, forward, in_pieces, outcome, padded_prompt, prompt, with_loss

RUNTIMES = ("grouped", "conditional")  # compared with masked


def runs(output) -> torch.Tensor:
    """Bool [routed layers, B, T]."""
    return torch.stack([route.run for route in output.routes])


def outcome_by(model, runtime: str, ids, mask=None, **kwargs) -> torch.Tensor:
    with using(model, runtime):
        found = outcome(forward(model, ids, mask, **kwargs))
    return found if mask is None else found[mask.bool()]


@torch.no_grad()
def runtimes_agree(make):
    """Given equal routes: those decided, and some where a layer is run by all, by nobody, by a few."""
    model, (ids, mask) = make(), padded_prompt()
    decided = runs(forward(model, ids, mask))
    extremes = decided.clone()
    extremes[0], extremes[-1] = False, True
    for routes in (decided, extremes):
        expected = outcome_by(model, "masked", ids, mask, routes=routes)
        for runtime in RUNTIMES:
            assert_near(outcome_by(model, runtime, ids, mask, routes=routes), expected)


@torch.no_grad()
def runtimes_agree_over_a_cache(make):
    """In single steps and chunks, each deciding for itself."""
    model, (ids, mask) = make(), padded_prompt()
    expected = outcome_by(model, "masked", ids, mask)
    for runtime in ("masked", *RUNTIMES):
        with using(model, runtime):
            assert_near(in_pieces(model, ids, mask, [9, 1, 1, 3])[mask.bool()], expected)


@torch.no_grad()
def replayed_equals_decided(make):
    """Bit for bit, under every runtime; and other routes give another answer."""
    model, (ids, mask) = make(), padded_prompt()
    for runtime in ("masked", *RUNTIMES):
        with using(model, runtime):
            output = forward(model, ids, mask)
        routes = runs(output)
        decided = outcome(output)[mask.bool()]
        assert torch.equal(outcome_by(model, runtime, ids, mask, routes=routes), decided)
        assert (outcome_by(model, runtime, ids, mask, routes=~routes) - decided).abs().max() > 1e-3


def gradients_agree(make):
    """For the input, adapters and, where gates scale the branches, routers. Straight-through terms are left out:
    they exist in `masked` only, where both branches are computed."""
    model = make()
    routes = runs(with_loss(model)[0])
    with without_straight_through(model):
        expected = gradients_by(model, "masked", routes)
        assert expected["inputs_embeds"].abs().max() > 0
        for runtime in RUNTIMES:
            for name, gradient in gradients_by(model, runtime, routes).items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-10)


def gradients_by(model, runtime: str, routes) -> dict[str, torch.Tensor]:
    with using(model, runtime):
        output, embeds = with_loss(model, routes=routes)
    trained = dict(model.policy.named_parameters())
    found = torch.autograd.grad(output.loss, [embeds, *trained.values()], materialize_grads=True, allow_unused=True)
    return dict(zip(("inputs_embeds", *trained), found, strict=True))


def without_straight_through(model):
    """Inside, a hard_mask policy's routes carry no gradient; others are as they were."""
    hard = getattr(getattr(model.policy, "method", None), "gate", None) == "hard_mask"
    gated = (lambda score, run: Route(run, score)) if hard else getattr(model.policy, "gated", None)
    return mock.patch.object(model.policy, "gated", gated, create=True)


def straight_through_is_the_gradient_of_a_mixture(make):
    """The last router's gradient: that of run * branch + (1 - run) * adapter by `run`, times the sigmoid's slope."""
    model, leaves = make(), []

    def mixed(score, run):
        leaves.append((run.to(score.dtype).requires_grad_(), score.sigmoid().detach()))
        leaf = leaves[-1][0]
        return Route(run, score, leaf, leaf, 1 - leaf)

    with using(model, "masked"):
        bias = model.policy.routers[str(model.policy.layers[-1])].head.bias
        (ours,) = torch.autograd.grad(with_loss(model)[0].loss, bias)
        with mock.patch.object(model.policy, "gated", mixed):
            loss = with_loss(model)[0].loss
    leaf, gate = leaves[-1]
    (by_run,) = torch.autograd.grad(loss, leaf)
    assert_near(ours, (by_run * gate * (1 - gate)).sum()[None])
    assert ours.abs() > 1e-6


@torch.no_grad()
def depth_never_counts_pads(make):
    """The depth of a padded batch is that of its rows alone, whatever the pads did."""
    model, (ids, mask) = make(), padded_prompt()
    valid = mask.bool()
    with recording(model) as together:
        forward(model, ids, mask)
    with recording(model) as alone:
        for row, pads in enumerate(PADS):
            forward(model, ids[row : row + 1, pads:])
    depth = float(alone.run.sum(0).double().mean())
    tokens = [[str(token) for token in row] for row in ids.tolist()]
    for run in (together.run, together.run | ~valid, together.run & valid):
        assert abs(depth_of(run, valid) - depth) < 1e-12
        assert abs(Trace(tokens, run, valid).mean_depth - depth) < 1e-12


@torch.no_grad()
def conditional_never_touches_skipped_weights(make):
    """One row that skips is not hurt by weights that are not numbers; keys and values aside, which others may read."""
    model, ids = deepcopy(make()), prompt(1, 1)
    for layer in model.policy.layers:
        block = model.backbone.blocks[layer].layer
        for module in (block.self_attn.o_proj, block.mlp):
            for parameter in module.parameters():
                parameter.fill_(torch.nan)
    nobody = torch.zeros(len(model.policy.layers), 1, 1, dtype=torch.bool)
    assert outcome_by(model, "conditional", ids, routes=nobody).isfinite().all()
    assert not outcome_by(model, "masked", ids, routes=nobody).isfinite().all()


@torch.no_grad()
def dense_is_the_base(model, stock):
    """Bit for bit, at once and over a cache, with and without pads."""
    ids, mask = padded_prompt()
    with dense(model):
        for seen in (None, mask):
            assert torch.equal(forward(model, ids, seen).logits, forward(stock, ids, seen).logits)
            pieces = (in_pieces(each, ids, seen, [9, 1, 4]) for each in (model, stock))
            assert torch.equal(*pieces)


FORWARD = [
    runtimes_agree,
    runtimes_agree_over_a_cache,
    replayed_equals_decided,
    gradients_agree,
    depth_never_counts_pads,
    conditional_never_touches_skipped_weights,
]
