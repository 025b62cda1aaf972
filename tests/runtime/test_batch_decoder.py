"""One token of each of several sequences by lanes gives what the reference gives; and lanes are really taken."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from transformers.cache_utils import DynamicCache

from laval.compat import cache_argument
from laval.models import using
from laval.runtime import choose
from laval.runtime.decoder import Decoders
from laval.runtime.steps import masked
from tests.invariants.harness import generate, outcome, padded_prompt, positions_of, prompt
from tests.invariants.subjects import build
from tests.runtime.test_decoder import LANES, SKIPPING, TOLERANCE, only_lanes

BATCH, START, END = 5, 4, 13
WAYS = ("grouped", "conditional", "auto")


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


def cache_of(model) -> DynamicCache:
    return DynamicCache(config=model.base.config)


def steps(model, runtime: str, ids, mask=None, routes=None, read=outcome, start=START) -> torch.Tensor:
    """What is read from ids [B, N], a prompt and then token by token; routes [layers, B, N] to replay."""
    cache, found = cache_of(model), []
    with using(model, runtime):
        for place in (slice(0, start), *(slice(at, at + 1) for at in range(start, ids.shape[1]))):
            seen = {} if routes is None else {"routes": routes[:, :, place]}
            if mask is not None:
                known = mask[:, : place.stop]
                seen |= {"attention_mask": known, "position_ids": positions_of(known)[:, place]}
            found.append(read(model(ids[:, place], **seen, **cache_argument(cache))))
    return torch.cat(found, dim=1)


def runs(output) -> torch.Tensor:
    """[B, T, layers]"""
    return torch.stack([route.run for route in output.routes], dim=-1)


def close(found: torch.Tensor, expected: torch.Tensor, dtype=torch.float64) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("family", LANES)
def test_full_equals_the_base(family, dtype, threads):
    model = build(family, "hard_mask", "sdpa", dtype)
    for batch in (2, 3, 4, 9):
        ids = prompt(batch, END)
        expected = steps(model, "dense", ids, read=lambda output: output.logits)
        with only_lanes():
            close(steps(model, "full", ids, read=lambda output: output.logits), expected, dtype)


@pytest.mark.parametrize("method", SKIPPING)
@pytest.mark.parametrize("family", LANES)
def test_skipping_equals_masked(family, method):
    """Outputs, gates and routes; some layers are skipped by all rows, some by none, some by a few."""
    model = build(family, method, "sdpa", torch.float64)
    for batch in (2, BATCH):
        ids = prompt(batch, END)
        expected, routes = steps(model, "masked", ids), steps(model, "masked", ids, read=runs)
        with only_lanes():
            for way in WAYS:
                close(steps(model, way, ids), expected)
                assert torch.equal(steps(model, way, ids, read=runs), routes)


def test_all_some_and_no_rows_run():
    """Or the test above would not see every branch."""
    rows = steps(build("llama", "hard_mask", "sdpa", torch.float64), "masked", prompt(2, END), read=runs)[:, START:]
    assert set(rows.sum(0).flatten().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("family", LANES)
def test_float32_is_close(family):
    model, ids = build(family, "released", "sdpa", torch.float32), prompt(BATCH, END)
    routes = steps(model, "masked", ids, read=runs).permute(2, 0, 1)
    with using(model, "masked"):
        expected = steps(model, "masked", ids, routes=routes)
    with only_lanes():
        close(steps(model, "grouped", ids), expected, torch.float32)


@pytest.mark.parametrize("method", ["hard_mask", "random"])
@pytest.mark.parametrize("family", LANES)
def test_left_padding(family, method):
    model, (ids, mask) = build(family, method, "sdpa", torch.float64), padded_prompt()
    for way, reference in (("grouped", "masked"), ("full", "dense")):
        expected = steps(model, reference, ids, mask)
        with only_lanes():
            found = steps(model, way, ids, mask)
        read = mask.bool()
        read[:, :START] = False
        close(found[read][:, :128], expected[read][:, :128])
    assert (steps(model, "grouped", ids)[read] - steps(model, "grouped", ids, mask)[read]).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_rows_of_a_batch_are_what_they_are_alone(family):
    model, ids = build(family, "hard_mask", "sdpa", torch.float64), prompt(BATCH, END)
    together = steps(model, "auto", ids)
    for row in range(BATCH):
        close(together[row : row + 1], steps(model, "auto", ids[row : row + 1]))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_cache_that_lanes_blocks_and_others_share(family):
    """Lanes and blocks by turns, rows reordered as beams do, and buffers that must grow."""
    model, ids = build(family, "hard_mask", "sdpa", torch.float64), prompt(3, 12)

    def mixed() -> torch.Tensor:
        cache, found = cache_of(model), []
        for at in range(12):
            found.append(outcome(model(ids[:, at : at + 1], **cache_argument(cache))))
            for layer in cache.layers:
                layer.spare = 0
            if at in (3, 7):
                cache.reorder_cache(torch.tensor([2, 0, 0]))
        return torch.cat(found, dim=1)

    with mock.patch.object(Decoders, "of", lambda self, model, cache: None):
        expected = mixed()
    of, calls = Decoders.of, iter([True, True, False, True] * 3)
    with mock.patch.object(Decoders, "of", lambda *these: of(*these) if next(calls) else None):
        close(mixed(), expected)


def test_a_cache_may_change_its_number_of_rows():
    """A prompt for all is read once and repeated, and rows that end leave."""
    model, ids = build("llama", "hard_mask", "sdpa", torch.float64), prompt(3, 10)
    ids[:, :5] = ids[0, :5]
    cache = cache_of(model)
    with only_lanes():
        model(ids[:1, :4], **cache_argument(cache))
        model(ids[:1, 4:5], **cache_argument(cache))
        cache.batch_repeat_interleave(3)
        found = [outcome(model(ids[:, at : at + 1], **cache_argument(cache))) for at in (5, 6)]
        cache.batch_select_indices(torch.tensor([1]))
        alone = outcome(model(ids[1:2, 7:8], **cache_argument(cache)))
    with using(model, "masked"):
        expected = outcome(model(ids))
    close(torch.cat(found, dim=1), expected[:, 5:7])
    close(alone, expected[1:2, 7:8])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_generate_equals_generate_by_blocks(family):
    model, (ids, mask) = build(family, "hard_mask", "sdpa", torch.float64), padded_prompt()
    with only_lanes():
        by_lanes = generate(model, ids, mask)
    with mock.patch.object(Decoders, "of", lambda self, model, cache: None):
        assert torch.equal(generate(model, ids, mask), by_lanes)


def test_masks_by_head_go_through_blocks():
    model, ids = build("llama", "hard_mask", "sdpa", torch.float64), prompt(2, 5)
    heads = torch.ones(2, 4, 1, 5, dtype=torch.bool)
    cache = cache_of(model)
    model(ids[:, :4], **cache_argument(cache))
    with only_lanes(), pytest.raises(AssertionError, match="through blocks"):
        model(ids[:, 4:], attention_mask=heads, **cache_argument(cache))


# Agreement.


def agreed_by_hand(model, ids) -> tuple[torch.Tensor, torch.Tensor]:
    """The naive twin: all tokens at once by the reference, where each place of the batch agrees at each layer."""
    x = model.backbone.embed(ids)
    contexts, routes = model.backbone.contexts(x), []
    for block, context in zip(model.backbone.blocks, contexts, strict=True):
        if block.index in model.policy.layers:
            asked = model.policy.route(block.index, block.norm(x), context).run
            routes.append(asked.any(0, keepdim=True).expand_as(asked))
            x, _ = masked(block, model.policy, x, context, routes[-1])
        else:
            x = block(x, context)
    return model.backbone.head(x), torch.stack(routes, dim=-1)


@pytest.mark.parametrize("by_lanes", [True, False])
@pytest.mark.parametrize("method", SKIPPING)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_agreement_equals_its_twin(family, method, by_lanes):
    model, ids = build(family, method, "sdpa", torch.float64), prompt(2, END)
    expected, routes = agreed_by_hand(model, ids)
    lanes = only_lanes() if by_lanes else mock.patch.object(Decoders, "of", lambda self, model, cache: None)
    with lanes:
        close(steps(model, "agreed", ids, read=lambda output: output.logits, start=1), expected)
        assert torch.equal(steps(model, "agreed", ids, read=runs, start=1), routes)
    if method in ("hard_mask", "released"):
        assert not routes.all() and not torch.equal(routes, steps(model, "masked", ids, read=runs))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_one_row_agrees_with_itself(family):
    model, ids = build(family, "hard_mask", "sdpa", torch.float64), prompt(1, END)
    with only_lanes():
        close(steps(model, "agreed", ids), steps(model, "conditional", ids))


def test_a_prompt_is_not_asked_to_agree():
    """Tokens of one call may not depend on later ones; and its rows are computed together anyway."""
    model, ids = build("llama", "hard_mask", "sdpa", torch.float64), prompt(2, END)
    with using(model, "agreed"):
        found = model(ids)
    with using(model, "grouped"):
        assert torch.equal(runs(found), runs(model(ids)))
    assert choose("agreed", 26, False).step == "grouped"
    assert choose("agreed", 2, False, step=True).step == "agreed"


def test_given_routes_are_obeyed():
    model, ids = build("llama", "hard_mask", "sdpa", torch.float64), prompt(2, END)
    routes = torch.rand(3, 2, END, generator=torch.Generator().manual_seed(0)) < 0.5
    close(steps(model, "agreed", ids, routes=routes), steps(model, "masked", ids, routes=routes))
