"""Kernels for few and for many rows give what stock ones give, up to rounding; and they are really taken."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from laval.blocks import FEW_ROWS, MANY_ROWS, backbone_of
from laval.ops import rows
from tests.blocks.script import CASES, calls, new_cache, prompt, stock, through_blocks
from tests.tiny import tiny_model

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}


@pytest.mark.parametrize("kernels", [FEW_ROWS, MANY_ROWS], ids=["few", "many"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("family", "implementation"), CASES)
@torch.no_grad()
def test_quick_kernels_equal_the_model(family, implementation, dtype, kernels):
    model = tiny_model(family, dtype, attn_implementation=implementation)
    quick = backbone_of(model, kernels)
    for padded, cached in [(False, False), (True, False), (False, True), (True, True)]:
        ours, theirs = (new_cache(model, cached) for _ in range(2))
        for call in calls(*prompt(padded), cached):
            expected = stock(model, *call, theirs)
            found = through_blocks(quick, "__call__", *call, ours)
            torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype] * expected.abs().max())


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text", "phi3"])
@torch.no_grad()
def test_one_row_never_meets_a_plain_product(family):
    """Else the whole matrix is read by one core, and nobody notices but users."""
    quick = backbone_of(tiny_model(family, torch.float32, attn_implementation="sdpa"), FEW_ROWS)
    with mock.patch.object(rows.F, "linear", side_effect=AssertionError("a plain product")):
        with mock.patch.object(rows, "parted", lambda outputs, threads: 2):
            x = quick.embed(torch.tensor([[5]]))
            for block, context in zip(quick.blocks, quick.contexts(x), strict=True):
                x = block(x, context)
            assert torch.isfinite(quick.head(x)).all()


@torch.no_grad()
def test_heads_with_masks_of_their_own_go_the_stock_way():
    model = tiny_model("llama", torch.float64, attn_implementation="sdpa")
    plain, quick = backbone_of(model), backbone_of(model, FEW_ROWS)
    x = plain.embed(prompt(False)[0])
    heads = model.config.num_attention_heads
    mask = torch.ones(1, heads, x.shape[1], x.shape[1], dtype=torch.bool).tril().expand(len(x), -1, -1, -1).clone()
    mask[:, 0, 1:, 0] = False
    ours, theirs = (each.contexts(x, mask)[0] for each in (quick, plain))
    torch.testing.assert_close(quick.blocks[0](x, ours), plain.blocks[0](x, theirs), rtol=0, atol=1e-11)
