"""One token at a time by lanes gives what the reference gives; and lanes are really taken where they can be."""

from __future__ import annotations

import gc
from copy import deepcopy
from unittest import mock

import pytest
import torch
from transformers.cache_utils import DynamicCache

from laval.compat import cache_argument
from laval.models import attach, dense, using
from laval.models.modeling import AdaptiveForCausalLM
from laval.runtime.decoder import Decoders
from laval.skip import FlexiDepth
from tests.invariants.harness import prompt
from tests.invariants.subjects import METHODS, WIDTHS, build, randomise
from tests.tiny import FAMILIES, implementations, tiny_model

LANES = [family for family in FAMILIES if family != "phi3" and "sdpa" in implementations(family)]
SKIPPING = ["hard_mask", "released", "drop", "random", "ablated"]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def steps(model, ids, runtime: str, between=lambda place: None) -> torch.Tensor:
    """Logits of ids [1, N]: a prompt of four tokens, then one by one."""
    cache, found = DynamicCache(config=model.base.config), []
    with using(model, runtime):
        for place in (slice(0, 4), *(slice(at, at + 1) for at in range(4, ids.shape[1]))):
            between(place.start)
            found.append(model(ids[:, place], **cache_argument(cache)).logits)
    return torch.cat(found, dim=1)


def only_lanes():
    """Inside, a single token must not go through blocks."""
    original = AdaptiveForCausalLM.run_layers

    def guarded(self, way, blocks, x, *rest, **options):
        assert x.shape[1] > 1, "a single token went through blocks"
        return original(self, way, blocks, x, *rest, **options)

    return mock.patch.object(AdaptiveForCausalLM, "run_layers", guarded)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("method", SKIPPING)
@pytest.mark.parametrize("family", LANES)
def test_conditional_equals_masked(family, method, dtype):
    model, ids = build(family, method, "sdpa", dtype), prompt()[:1, :12]
    expected = steps(model, ids, "masked")
    with only_lanes():
        found = steps(model, ids, "conditional")
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("family", LANES)
def test_full_equals_the_base(family, dtype):
    model, ids = build(family, "hard_mask", "sdpa", dtype), prompt()[:1, :12]
    expected = steps(model, ids, "dense")
    with only_lanes():
        found = steps(model, ids, "full")
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_routes_and_scores_are_those_of_blocks(family):
    model, ids = build(family, "hard_mask", "sdpa", torch.float64), prompt()[:1, :9]
    cache = DynamicCache(config=model.base.config)
    for place in range(ids.shape[1]):
        found = model(ids[:, place : place + 1], **cache_argument(cache)).routes
    with using(model, "masked"):
        expected = model(ids).routes
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.run, theirs.run[:, -1:])
        torch.testing.assert_close(ours.gate, theirs.gate[:, -1:], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "method", "implementation"),
    [("phi3", "hard_mask", "sdpa"), ("llama", "no_kv", "sdpa"), ("llama", "hard_mask", "eager")],
)
def test_others_go_through_blocks(family, method, implementation):
    base = tiny_model(family, torch.float64, attn_implementation=implementation)
    model = attach(base, METHODS[method])
    randomise(model)
    assert Decoders().of(model, DynamicCache()) is None
    ids = prompt()[:1, :9]
    torch.testing.assert_close(steps(model, ids, "conditional"), steps(model, ids, "masked"), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_padded_row(family):
    model, ids = build(family, "hard_mask", "sdpa", torch.float64), prompt()[:1, :12]
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[:, :2] = 0

    def last() -> torch.Tensor:
        cache = DynamicCache(config=model.base.config)
        model(ids[:, :11], attention_mask=mask[:, :11], **cache_argument(cache))
        return model(ids[:, 11:], attention_mask=mask, **cache_argument(cache)).logits

    with only_lanes():
        found = last()
    with using(model, "masked"):
        expected = last()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    mask[:] = 1
    assert (last() - expected).abs().max() > 1e-3


def test_thresholds_changed_between_tokens_are_seen():
    model = attach(tiny_model("llama", torch.float64, attn_implementation="sdpa"), FlexiDepth(**WIDTHS))
    randomise(model)

    def change(place: int) -> None:
        if place == 6:
            model.policy.set_thresholds([0.9] * len(model.policy.layers))

    found = steps(model, prompt()[:1, :10], "conditional", change)
    model.policy.set_thresholds([0.5] * len(model.policy.layers))
    torch.testing.assert_close(found, steps(model, prompt()[:1, :10], "masked", change), rtol=0, atol=1e-9)


def test_a_copy_of_a_model_decodes_with_its_own_weights():
    model = build("llama", "hard_mask", "sdpa", torch.float64)
    cache = DynamicCache(config=model.base.config)
    model(prompt()[:1, :4], **cache_argument(cache))
    model(prompt()[:1, 4:5], **cache_argument(cache))
    other = deepcopy(model)
    other.base.model.layers[0].mlp.up_proj.weight.mul_(2.0)
    assert not other.decoders.known
    found = other(prompt()[:1, 5:6], **cache_argument(cache)).logits
    cache.crop(-1)
    assert (found - model(prompt()[:1, 5:6], **cache_argument(cache)).logits).abs().max() > 1e-3


def test_a_decoder_lives_as_long_as_its_cache():
    model = build("llama", "hard_mask", "sdpa", torch.float64)
    steps(model, prompt()[:1, :6], "auto")
    gc.collect()
    assert not model.decoders.known


def test_dense_stays_the_untouched_base():
    model, ids = build("llama", "hard_mask", "sdpa", torch.float32), prompt()[:1, :8]
    with dense(model), mock.patch.object(Decoders, "of", side_effect=AssertionError("a lane in dense")):
        cache = DynamicCache(config=model.base.config)
        found = [model(ids[:, place : place + 1], **cache_argument(cache)).logits for place in range(8)]
    cache = DynamicCache(config=model.base.config)
    expected = [model.base(ids[:, place : place + 1], **cache_argument(cache)).logits for place in range(8)]
    assert torch.equal(torch.cat(found), torch.cat(expected))


def test_generate_equals_generate_by_blocks():
    model, ids = build("llama", "hard_mask", "sdpa", torch.float64), prompt()[:1, :6]
    by_lanes = model.generate(ids, max_new_tokens=12, do_sample=False)
    with mock.patch.object(Decoders, "of", lambda self, model, cache: None):
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), by_lanes)
