"""Several tokens of one sequence by lanes give what the untouched base gives; and lanes are really taken."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from transformers.cache_utils import DynamicCache

from laval.compat import cache_argument
from laval.models import using
from laval.models.modeling import AdaptiveForCausalLM
from laval.ops import some_rows
from laval.runtime.decoder import Decoders
from tests.invariants.harness import prompt
from tests.invariants.subjects import build
from tests.runtime.test_decoder import LANES, TOLERANCE

LENGTHS = [2, 3, 4, 5, 7, 8, 11, 16]
PROMPT = 5


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(params=[1, 2])
def threads(request):
    """Products are parted by threads, and not at all for one."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def only_lanes():
    """Inside, nothing goes through blocks."""
    return mock.patch.object(AdaptiveForCausalLM, "run_layers", side_effect=AssertionError("went through blocks"))


def text(length: int) -> torch.Tensor:
    return prompt().flatten().repeat(3)[None, :length]


def cache_of(model) -> DynamicCache:
    return DynamicCache(config=model.base.config)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    bound = TOLERANCE[expected.dtype] * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


def passes(model, runtime: str, lengths, mask=None) -> torch.Tensor:
    """Logits of passes of so many tokens, one after another over one cache."""
    ids, cache, found, at = text(sum(lengths)), cache_of(model), [], 0
    with using(model, runtime):
        for length in lengths:
            seen = {} if mask is None else {"attention_mask": mask[:, : at + length]}
            found.append(model(ids[:, at : at + length], **seen, **cache_argument(cache)).logits)
            at += length
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("family", LANES)
def test_rows_over_a_cache_equal_the_base(family, dtype, threads):
    model = build(family, "hard_mask", "sdpa", dtype)
    for length in LENGTHS:
        expected = passes(model, "dense", (PROMPT, length, 1, length))
        with only_lanes():
            close(passes(model, "full", (PROMPT, length, 1, length)), expected)


@pytest.mark.parametrize("family", LANES)
def test_a_padded_sequence(family):
    model, lengths = build(family, "hard_mask", "sdpa", torch.float64), (4, 5, 3)
    mask = torch.ones(1, sum(lengths), dtype=torch.long)
    mask[:, :2] = 0
    expected = passes(model, "dense", lengths, mask)[:, 2:]
    with only_lanes():
        close(passes(model, "full", lengths, mask)[:, 2:], expected)
    assert (passes(model, "full", lengths)[:, 2:] - expected).abs().max() > 1e-3


@pytest.mark.parametrize("family", LANES)
def test_cropping_between_passes(family):
    """As verification does: a pass, its refused tail cut off, the next pass with other tokens."""
    model, ids = build(family, "hard_mask", "sdpa", torch.float64), text(24)

    def verify(runtime: str) -> torch.Tensor:
        cache = DynamicCache()  # full layers: transformers refuses to crop full windows
        with using(model, runtime):
            model(ids[:, :8], **cache_argument(cache))
            model(ids[:, 9:15], **cache_argument(cache))
            cache.crop(-4)
            again = model(ids[:, 14:18], **cache_argument(cache)).logits
            cache.crop(-2)
            return torch.cat((again, model(ids[:, 20:24], **cache_argument(cache)).logits), dim=1)

    expected = verify("dense")
    with only_lanes():
        close(verify("full"), expected)


@pytest.mark.parametrize("start", [1, 5])
def test_blocks_go_on_in_a_cache_that_lanes_began_or_enlarged(start):
    model, lengths = build("llama", "hard_mask", "sdpa", torch.float64), (start, 3, 1, 4)
    ids = text(sum(lengths))

    def mixed() -> torch.Tensor:
        cache, found, at = cache_of(model), [], 0
        for length in lengths:
            with using(model, "full"):
                found.append(model(ids[:, at : at + length], **cache_argument(cache)).logits)
            for layer in cache.layers:
                layer.spare = 0  # the next pass must make room
            at += length
        return torch.cat(found, dim=1)

    with mock.patch.object(Decoders, "of", lambda self, model, cache: None):
        expected = mixed()
    of, calls = Decoders.of, iter([True, False, True, False])
    with mock.patch.object(Decoders, "of", lambda *these: of(*these) if next(calls) else None):
        close(mixed(), expected)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_mask_of_the_callers_own(family):
    """A tree of guesses: rows see the prompt and themselves, not one another."""
    model, ids, rows = build(family, "hard_mask", "sdpa", torch.float64), text(8), 3
    mask = torch.cat((torch.ones(rows, PROMPT), torch.eye(rows)), dim=1).bool()[None, None]

    def guesses(runtime: str) -> torch.Tensor:
        cache = cache_of(model)
        with using(model, runtime):
            model(ids[:, :PROMPT], **cache_argument(cache))
            return model(ids[:, PROMPT:], attention_mask=mask, **cache_argument(cache)).logits

    expected = guesses("dense")
    with only_lanes():
        close(guesses("full"), expected)


def test_a_mask_by_head_batches_and_skipping_go_through_blocks():
    model, ids = build("llama", "hard_mask", "sdpa", torch.float64), text(8)
    heads = torch.ones(1, 4, 4, 8, dtype=torch.bool).tril(4)
    for runtime, batch, mask in (("full", 1, heads), ("full", 2, None), ("conditional", 1, None)):
        cache, seen = cache_of(model), {} if mask is None else {"attention_mask": mask}
        rows = ids.expand(batch, -1)
        with using(model, runtime):
            model(rows[:, :4], **cache_argument(cache))
            with only_lanes(), pytest.raises(AssertionError, match="through blocks"):
                model(rows[:, 4:], **seen, **cache_argument(cache))


@pytest.mark.parametrize("rows", LENGTHS)
def test_products_and_norms_equal_the_modules(rows, threads):
    x = torch.randn(rows, 20)
    for bias in (True, False):
        linear = torch.nn.Linear(20, 24, bias=bias)
        torch.testing.assert_close(some_rows.map_of(linear)(x), linear(x), rtol=1e-5, atol=1e-5)
    other = torch.nn.Sequential(linear)
    torch.testing.assert_close(some_rows.map_of(other)(x), linear(x), rtol=1e-5, atol=1e-5)
