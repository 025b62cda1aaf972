"""Phi 3's fused projection, sliced."""

from __future__ import annotations

import torch
from torch import nn

from laval.blocks import backbone_of
from tests.blocks.script import prompt
from tests.tiny import tiny_model


class Wrapped(nn.Module):
    """Stands for a LoRA or quantised projection: its output is not its weight's product."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear, self.weight = linear, linear.weight

    def forward(self, x):
        return self.linear(x) + 0.5


@torch.no_grad()
def test_keys_and_values_never_compute_queries(monkeypatch):
    backbone = backbone_of(tiny_model("phi3"))
    x = backbone.embed(prompt(False)[0])
    block, context = backbone.blocks[0], backbone.contexts(x)[0]
    sizes, linear = [], nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda z, w, *b: sizes.append(len(w)) or linear(z, w, *b))
    kv = block.keys_values(x, context)
    assert sizes == [2 * 2 * 16]
    block.attend(x, kv, context)
    assert sizes[1] == 4 * 16


@torch.no_grad()
def test_a_wrapped_projection_is_called_not_sliced():
    backbone = backbone_of(tiny_model("phi3", torch.float64))
    block = backbone.blocks[0]
    block.attention.qkv_proj = Wrapped(block.attention.qkv_proj)
    x = backbone.embed(prompt(False)[0])
    context = backbone.contexts(x)[0]
    z = block.norm(x)
    h = x + block.attend(z, block.keys_values(z, context), context)
    torch.testing.assert_close(h + block.feed_forward(block.feed_norm(h)), block(x, context))
