"""Without keys and values for skipped rows: against a twin that writes the visibility into an explicit mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laval.models import attach, using
from laval.skip import FlexiDepth
from tests.blocks.script import CASES
from tests.invariants.harness import assert_near, forward, generate, padded_prompt, positions_of, prompt
from tests.invariants.skipping import runs
from tests.invariants.subjects import WIDTHS, Subject
from tests.tiny import tiny_model

HIDING = [case for case in CASES if case[0] != "gemma2"]


def naive(model, ids, mask, routes) -> torch.Tensor:
    """Logits [B, T, V] of a model on eager attention; routes bool [routed layers, B, T]."""
    x = model.backbone.embed(ids)
    contexts = model.backbone.contexts(x, mask, positions_of(mask))
    run_of = dict(zip(model.policy.layers, routes, strict=True))
    for block, context in zip(model.backbone.blocks, contexts, strict=True):
        run = run_of.get(block.index, torch.ones_like(ids, dtype=torch.bool))
        itself = torch.eye(ids.shape[1], dtype=torch.bool)
        hidden = ~(run[:, None, None, :] | itself)  # [B, 1, T, S]
        context = replace(context, mask=context.mask.masked_fill(hidden, torch.finfo(x.dtype).min))
        z = block.norm(x)
        h = x + run[..., None] * block.attend(z, block.keys_values(z, context), context)
        u = block.feed_norm(h)
        skipped = model.policy.adapt(block.index, u) if block.index in run_of else 0
        x = h + torch.where(run[..., None], block.feed_forward(u), skipped)
    return model.backbone.head(x)


def logits_by(model, runtime: str, ids, mask, routes) -> torch.Tensor:
    with using(model, runtime):
        return forward(model, ids, mask, routes=routes).logits[mask.bool()]


@pytest.mark.parametrize(("family", "implementation"), HIDING)
@torch.no_grad()
def test_hidden_keys_are_masked_keys(family, implementation):
    model, eager = (Subject(family, "no_kv", name)() for name in (implementation, "eager"))
    ids, mask = padded_prompt()
    routes = runs(forward(model, ids, mask))
    expected = naive(eager, ids, mask, routes)[mask.bool()]
    for runtime in ("masked", "grouped", "conditional"):
        assert_near(logits_by(model, runtime, ids, mask, routes), expected)


@torch.no_grad()
def test_hiding_is_felt():
    ids = prompt()
    hiding, keeping = (Subject("llama", method, "sdpa")() for method in ("no_kv", "hard_mask"))
    routes = runs(forward(hiding, ids))
    ours, theirs = (logits_by(model, "masked", ids, torch.ones_like(ids), routes) for model in (hiding, keeping))
    assert (ours - theirs).abs().max() > 1e-3


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_nobody_is_seen(implementation):
    """Rows that never run a layer leave nothing: the one row that does sees itself alone, pads or not."""
    model = Subject("llama", "no_kv", implementation)()
    ids, mask = padded_prompt()
    routes = torch.zeros(3, *ids.shape, dtype=torch.bool)
    assert logits_by(model, "masked", ids, mask, routes).isfinite().all()
    routes[:, :, -1] = True
    expected = naive(Subject("llama", "no_kv", "eager")(), ids, mask, routes)[mask.bool()]
    for runtime in ("masked", "grouped"):
        assert_near(logits_by(model, runtime, ids, mask, routes), expected)


def test_visibility_survives_other_caches():
    """A cache of fixed size, and one that is cropped when drafted tokens are refused."""
    model, ids = Subject("llama", "no_kv", "sdpa")(), prompt(1)
    ids = torch.cat((ids, ids[:, :8]), dim=1)  # so that there is something to look up
    expected = generate(model, ids)
    assert torch.equal(generate(model, ids, cache_implementation="static"), expected)
    assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=4), expected)


def test_soft_caps_are_refused():
    with pytest.raises(ValueError, match="keep_kv is False.*attn_logit_softcapping 2.0.*keep_kv=True"):
        attach(tiny_model("gemma2"), FlexiDepth(**WIDTHS, keep_kv=False))
    attach(tiny_model("gemma2", attn_logit_softcapping=None), FlexiDepth(**WIDTHS, keep_kv=False))
