"""Hourglass as its paper words it: shift by k - 1, groups of k by reshaping, dense masks. Our streams equal it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from laval.models import ShortenedConfig, ShortenedForCausalLM
from laval.ops.relative import relative_attention, sinusoids
from laval.shorten import Level

PAPER = {"width": 16, "feed_forward": 24, "heads": 2, "norm": "first"}
LENGTH = 12


def model_of(plan: str, reduce: str, upsample: str) -> ShortenedForCausalLM:
    torch.manual_seed(0)
    level = {"rule": {"name": "fixed"}, "start": "zeros", "distance": "tokens", "reduce": reduce, "upsample": upsample}
    model = ShortenedForCausalLM(ShortenedConfig(plan, level, PAPER, vocab_size=20)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def attention(module, asking, readable, distance, spacing, biases):
    """Relative attention over explicit distances [Q, S], negative where hidden."""
    away = torch.arange(int(distance.max()) + 1) * spacing
    table = module.distances(sinusoids(away, 16, torch.float64)).unflatten(-1, (2, -1)).transpose(0, 1)
    heads = (map_(x) for map_, x in ((module.queries, asking), (module.keys, readable), (module.values, readable)))
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in heads)
    mixed = relative_attention(q, k, v, table, biases, distance.expand(len(asking), -1, -1))
    return module.output(mixed.transpose(1, 2).flatten(2))


def stack(module, x, spacing, biases):
    places = torch.arange(x.shape[1])
    for layer in module.layers:
        z = layer.attention_norm(x)
        x = x + attention(layer.attention, z, z, places[:, None] - places, spacing, biases)
        x = x + layer.feed_forward(layer.feed_norm(x))
    return module.norm(x)


def resample(module, asking, readable, distance, spacing, biases):
    h = asking + attention(module.layer.attention, asking, readable, distance, spacing, biases)
    return h + module.layer.feed_forward(module.layer.feed_norm(h))


def grouped(module, y, k):
    """[B, L, D] -> [B, L / k, D], by mean or by one map of k vectors side by side."""
    groups = y.unflatten(1, (-1, k))
    return module.map(groups.flatten(2)) if hasattr(module, "map") else groups.mean(2)


def shortened(reduce, x, k, spacing, biases):
    shifted = F.pad(x, (0, 0, k - 1, 0))[:, : x.shape[1]]
    if not hasattr(reduce, "resample"):
        return grouped(reduce, shifted, k)
    y = reduce.norm(shifted)
    q = reduce.query_norm(grouped(reduce.base, y, k))
    length = torch.arange(x.shape[1])
    ends = torch.arange(k - 1, x.shape[1], k)
    return resample(reduce.resample, q, y, ends[:, None] - length, spacing, biases)


def spread(module, y, k):
    if module is None:
        return torch.zeros(1, dtype=torch.float64)
    if hasattr(module, "map"):
        return module.map(y).unflatten(-1, (k, -1)).flatten(1, 2)
    return y.repeat_interleave(k, 1)


def lengthened(upsample, x, inner, k, biases):
    if not hasattr(upsample, "resample"):
        return spread(upsample, inner, k)
    y = upsample.norm(inner)
    q = upsample.query_norm(spread(upsample.base, y, k).expand(x.shape)) + x
    places = torch.arange(x.shape[1])
    return resample(upsample.resample, q, y, places[:, None] - places[::k], 1, biases)


def valley(level, x, factors, biases, spacing=1):
    if not isinstance(level, Level):
        return stack(level.stack, x, spacing, biases)
    k, *deeper = factors
    x = stack(level.outer, x, spacing, biases)
    inner = valley(level.inner, shortened(level.reduce, x, k, spacing, biases), deeper, biases, spacing * k)
    x = x + level.upsampled_norm(lengthened(level.upsample, x, inner, k, biases))
    return stack(level.outward, x, spacing, biases)


@pytest.mark.parametrize(
    ("reduce", "upsample"),
    [
        ("mean", "repeat"),
        ("linear", "linear"),
        ("attention", "attention"),
        ("attention_linear", "attention_repeat"),
        ("attention", "attention_linear"),
    ],
)
@pytest.mark.parametrize(("plan", "factors"), [("1@1 2@3 1@1", (3,)), ("1@1 1@2 1@6 1@2 1@1", (2, 3))])
@torch.no_grad()
def test_streams_are_the_published_valley(plan, factors, reduce, upsample):
    model = model_of(plan, reduce, upsample)
    ids = torch.randint(0, 20, (2, LENGTH))
    biases = (model.kind.distance.content, model.kind.distance.position)
    expected = model.kind.head(valley(model.stacks, model.kind.embed(ids), factors, biases))
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_any_length_is_the_beginning_of_a_longer_one():
    model = model_of("1@1 1@2 1@6 1@2 1@1", "attention", "attention")
    ids = torch.randint(0, 20, (2, LENGTH))
    whole = model(ids).logits
    for length in range(1, LENGTH):
        torch.testing.assert_close(model(ids[:, :length]).logits, whole[:, :length], rtol=0, atol=1e-10)
