"""The base model stays what it was: switched dense, and under a plug-in that has not learned anything yet."""

from __future__ import annotations

import pytest
import torch

from laval.models import attach, using
from laval.skip import FlexiDepth
from tests.blocks.script import CASES
from tests.invariants.harness import assert_near, forward, in_pieces, padded_prompt
from tests.invariants.skipping import dense_is_the_base
from tests.invariants.subjects import METHODS, WIDTHS, randomise
from tests.tiny import FAMILIES, implementations, tiny_model


def logits_of(output) -> torch.Tensor:
    return output.logits


@pytest.mark.parametrize(("family", "implementation"), CASES)
def test_dense_is_the_base(family, implementation):
    """Before and after routers and adapters are random; the stock model shares nothing with the adaptive one."""
    stock, base = (tiny_model(family, attn_implementation=implementation) for _ in range(2))
    model = attach(base, METHODS["released"])
    dense_is_the_base(model, stock)
    randomise(model)
    dense_is_the_base(model, stock)
    with torch.no_grad():
        assert (
            forward(model, padded_prompt()[0]).logits - forward(stock, padded_prompt()[0]).logits
        ).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "implementation"), CASES)
@torch.no_grad()
def test_a_new_plugin_is_an_identity_bit_for_bit(family, implementation, dtype):
    """In one pass. Over a cache up to rounding: the last bit of a product may depend on addresses."""
    base = tiny_model(family, dtype, attn_implementation=implementation)
    model = attach(base, FlexiDepth(**WIDTHS))
    ids, mask = padded_prompt()
    with using(model, "masked"):
        assert torch.equal(forward(model, ids, mask).logits, forward(base, ids, mask).logits)
        torch.testing.assert_close(*(in_pieces(each, ids, mask, [9, 1, 4], read=logits_of) for each in (model, base)))


@pytest.mark.parametrize("runtime", ["masked", "grouped", "conditional", "auto"])
@pytest.mark.parametrize(
    ("family", "keep_kv"),
    [(family, keep) for family in FAMILIES for keep in (True, False) if keep or family != "gemma2"],
)
@torch.no_grad()
def test_a_new_plugin_is_an_identity(family, runtime, keep_kv):
    base = tiny_model(family, torch.float64, attn_implementation=implementations(family)[-1])
    ids, mask = padded_prompt()
    with using(attach(base, FlexiDepth(**WIDTHS, keep_kv=keep_kv)), runtime) as model:
        assert_near(forward(model, ids, mask).logits[mask.bool()], forward(base, ids, mask).logits[mask.bool()])
