"""The tiny models are hard enough to test with."""

from __future__ import annotations

import pytest
import torch

from tests.blocks.script import new_cache, prompt, stock
from tests.tiny import FAMILIES, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_no_norm_is_an_identity(family):
    norms = {name: p for name, p in tiny_model(family).named_parameters() if "norm" in name}
    assert norms and all(p.std() > 0.1 for p in norms.values())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
@torch.no_grad()
def test_the_window_is_felt(family):
    ids, _ = prompt(False)
    wide = {"sliding_window": 100}
    short, long = (tiny_model(family, **overrides)(input_ids=ids).logits for overrides in ({}, wide))
    torch.testing.assert_close(short[:, :6], long[:, :6])
    assert (short[:, 6:] - long[:, 6:]).abs().amax(-1).min() > 1e-3


@torch.no_grad()
def test_the_soft_caps_are_felt():
    ids, _ = prompt(False)
    capped = tiny_model("gemma2")(input_ids=ids).logits
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        assert (tiny_model("gemma2", **{cap: None})(input_ids=ids).logits - capped).abs().max() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_float64_is_float64_throughout(family):
    model = tiny_model(family, torch.float64)
    ids, _ = prompt(False)
    cache, whole = new_cache(model, True), stock(model, ids, None, None, None)
    steps = [stock(model, ids[:, t : t + 1], None, None, cache) for t in range(14)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_exact_model_is_the_stock_model(family):
    ids, _ = prompt(False)
    exact, stock_model = tiny_model(family, torch.float64), tiny_model(family)
    torch.testing.assert_close(
        exact(input_ids=ids).logits.float(), stock_model(input_ids=ids).logits, rtol=0, atol=1e-4
    )
