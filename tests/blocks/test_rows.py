"""`attend` for the rows that ask equals `attend` for all rows, then choosing; compared in float64."""

from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch

from laval.blocks import MANY_ROWS, STOCK, Context, backbone_of
from laval.blocks.seats import seats
from laval.ops import attention
from tests.blocks.script import CASES, calls, new_cache, prompt
from tests.tiny import exact_attention, tiny_model

ROWS = {
    "few": [1, 17, 12],
    "one sequence": [20, 15],
    "ragged": [2, 3, 4, 5, 6, 7, 8, 9, 14, 27],
    "many": [row for row in range(28) if row % 9],
    "all, shuffled": torch.randperm(28, generator=torch.Generator().manual_seed(0)).tolist(),
    "none": [],
}


def double_model(family, implementation, monkeypatch):
    """A float64 model under the implementation's own name, so that rows are seated as they are in use."""
    model = tiny_model(family, torch.float64, attn_implementation=implementation)
    if implementation == "eager":
        model.set_attn_implementation("eager")
        modelling = sys.modules[type(model.get_decoder().layers[0]).__module__]
        monkeypatch.setattr(modelling, "eager_attention_forward", exact_attention)
    return model


def both(block, z, context, rows):
    """Updates of the rows that ask: asked alone, and chosen from everyone's."""
    kv = block.keys_values(z, context)
    everyone = block.attend(z, kv, context).flatten(0, 1)
    return block.attend(z, kv, context, rows=rows), everyone.index_select(0, rows)


@pytest.mark.parametrize("kernels", [STOCK, MANY_ROWS], ids=["stock", "many"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("family", "implementation"), [*CASES, ("llama", "exact")])
@torch.no_grad()
def test_rows_of_a_prompt(family, implementation, name, padded, kernels, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 3)
    backbone = backbone_of(double_model(family, implementation, monkeypatch), kernels)
    ids, mask = prompt(padded)
    rows = torch.tensor(ROWS[name], dtype=torch.long)
    if padded:
        rows = rows[rows > 3]  # nobody asks for a pad
    x = backbone.embed(ids)
    for block, context in zip(backbone.blocks[1:3], backbone.contexts(x, mask)[1:3], strict=True):
        ours, expected = both(block, block.norm(x), context, rows)
        assert ours.shape == (len(rows), 64)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernels", [STOCK, MANY_ROWS], ids=["stock", "many"])
@pytest.mark.parametrize(("family", "implementation"), CASES)
@torch.no_grad()
def test_rows_over_a_cache(family, implementation, kernels, monkeypatch):
    backbone = backbone_of(double_model(family, implementation, monkeypatch), kernels)
    cache = new_cache(backbone.model, True)
    asking = [torch.tensor([5, 9, 24]), torch.tensor([2, 0]), torch.tensor([3, 6, 7, 9])]
    for (ids, mask, positions), rows in zip(calls(*prompt(True, batch=3), True), asking, strict=True):
        x = backbone.embed(ids)
        for block, context in zip(backbone.blocks, backbone.contexts(x, mask, positions, cache), strict=True):
            ours, expected = both(block, block.norm(x), context, rows)
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
            x = block.feed_forward(block.feed_norm(x)) + x


@pytest.mark.parametrize("name", ["few", "many"])
@pytest.mark.parametrize(("family", "implementation"), CASES)
def test_gradients_of_rows(family, implementation, name, monkeypatch):
    backbone = backbone_of(double_model(family, implementation, monkeypatch))
    ids, mask = prompt(True)
    rows = torch.tensor(ROWS[name])
    rows = rows[rows > 3]
    block, x = backbone.blocks[2], backbone.embed(ids).detach()
    context = backbone.contexts(x, mask)[2]
    z = block.norm(x).detach().requires_grad_()
    # The input norm stands before z, the feed-forward after the update.
    weights = [p for n, p in block.layer.named_parameters() if n.startswith("self_attn")]
    ours, expected = (
        torch.autograd.grad(update.square().sum(), [z, *weights], retain_graph=True)
        for update in both(block, z, context, rows)
    )
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
        assert theirs.abs().max() > 0


@torch.no_grad()
def test_nobody_asks_yet_keys_are_written():
    backbone = backbone_of(tiny_model("qwen3"))
    cache = new_cache(backbone.model, True)
    x = backbone.embed(prompt(False)[0])
    block, context = backbone.blocks[0], backbone.contexts(x, cache=cache)[0]
    kv = block.keys_values(block.norm(x), context)
    assert block.attend(x, kv, context, rows=torch.empty(0, dtype=torch.long)).shape == (0, 64)
    assert cache.get_seq_length(0) == 14


@pytest.mark.parametrize("mask", [None, "padded"])
@torch.no_grad()
def test_many_rows_attend_in_blocks(mask):
    """Else they pay for keys that they cannot see, and nobody notices but users."""
    backbone = backbone_of(tiny_model("llama", attn_implementation="sdpa"), MANY_ROWS)
    ids, padding = prompt(mask is not None)
    x = backbone.embed(ids)
    block, context = backbone.blocks[0], backbone.contexts(x, padding)[0]
    kv = block.keys_values(block.norm(x), context)
    with mock.patch.object(block, "seated", side_effect=AssertionError("one mask for all rows")):
        assert torch.isfinite(block.attend(x, kv, context, torch.tensor([5, 6, 20, 27]))).all()


def test_seats_are_close_together_only_where_that_is_known_to_be_right_and_worth_it():
    def width(rows, mask=None, implementation="sdpa", length=8, **kwargs):
        context = Context(mask, torch.zeros(1), torch.zeros(1), torch.zeros(1), None, kwargs)
        return seats(torch.tensor(rows), 2, length, 12, context, implementation).width

    mask = torch.ones(2, 1, 8, 12, dtype=torch.bool)
    assert width([0, 3, 9], mask) == width([0, 3, 9]) == width([3, 9, 0], mask.float(), "eager") == 2
    assert width(list(range(7)), mask) == 7  # a mask has to be read anyway
    assert width(list(range(7))) == 8  # the fused causal kernel is as cheap
    assert width([0], mask, "flash_attention_2") == width([0], None, "eager") == width([0], mask, is_causal=False) == 8
    assert width([0], mask[:, :, :1], length=1) == 1
