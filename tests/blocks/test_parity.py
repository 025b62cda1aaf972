"""Composed steps equal transformers' own layers and models bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers import StaticCache

from laval.blocks import backbone_of
from tests.blocks.script import CASES, calls, new_cache, prompt, stock, through_blocks
from tests.tiny import tiny_model

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("family", "implementation"), CASES)
@torch.no_grad()
def test_compose_equals_the_layer(family, implementation, dtype):
    backbone = backbone_of(tiny_model(family, dtype, attn_implementation=implementation))
    for padded, cached in [(False, False), (True, False), (False, True), (True, True)]:
        caches = [new_cache(backbone.model, cached) for _ in range(2)]
        for ids, mask, positions in calls(*prompt(padded), cached):
            x = backbone.embed(ids)
            contexts = [backbone.contexts(x, mask, positions, cache) for cache in caches]
            for block, ours, theirs in zip(backbone.blocks, *contexts, strict=True):
                y = block(x, theirs)
                assert torch.equal(block.compose(x, ours), y), (block.index, padded, cached, ids.shape)
                x = y
        if cached:
            for ours, theirs in zip(*(cache.layers for cache in caches), strict=True):
                assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("way", ["__call__", "compose"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("family", "implementation"), CASES)
@torch.no_grad()
def test_backbone_equals_the_model(family, implementation, dtype, way):
    model = tiny_model(family, dtype, attn_implementation=implementation)
    backbone = backbone_of(model)
    for padded, cached in [(False, False), (True, False), (False, True), (True, True)]:
        ours, theirs = (new_cache(model, cached) for _ in range(2))
        for call in calls(*prompt(padded), cached):
            expected = stock(model, *call, theirs)
            assert torch.equal(through_blocks(backbone, way, *call, ours), expected), (padded, cached)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_backbone_equals_the_model_over_a_static_cache(family):
    model = tiny_model(family, attn_implementation="sdpa")
    ours, theirs = (StaticCache(config=model.config, max_cache_len=16) for _ in range(2))
    for call in calls(*prompt(False), True):
        expected = stock(model, *call, theirs)
        assert torch.equal(through_blocks(backbone_of(model), "compose", *call, ours), expected)


@pytest.mark.parametrize(("family", "implementation"), CASES)
def test_gradients_of_compose_equal_the_layers(family, implementation):
    backbone = backbone_of(tiny_model(family, attn_implementation=implementation))
    ids, mask = prompt(True)
    block = backbone.blocks[1]
    gradients = []
    for run in (block, block.compose):
        x = backbone.embed(ids).detach().requires_grad_()
        y = run(x, backbone.contexts(x, mask)[1])
        loss = (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum()
        gradients.append(torch.autograd.grad(loss, [x, *block.layer.parameters()]))
    for theirs, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert theirs.abs().max() > 0
