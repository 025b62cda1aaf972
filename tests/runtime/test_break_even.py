"""Where skipping was measured to lose, auto runs every layer; nobody else listens."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.cache_utils import DynamicCache

import laval
from laval.compat import cache_argument
from laval.evaluate import calibrate, depth_at, match_depth, perplexity
from laval.models import recording, skipping, using
from laval.report.tracing import trace_generation
from laval.runtime import RUNTIMES, BreakEven, choose
from laval.runtime.break_even import Measured
from laval.speculate.drafts import SkipDraft
from tests.evaluate.models import routed, some_text


def at(ratio: float, noise: float = 0.01, rounds: int = 12) -> Measured:
    return Measured(ratio, ratio - noise, ratio + noise, rounds)


LOSES = BreakEven(3.0, decode={1: at(1.03), 2: at(1.02), 8: at(0.88)}, prefill={64: at(0.5), 512: at(1.1)})
ALWAYS = BreakEven(3.0, decode={1: at(0.5), 2: at(0.5)}, prefill={64: at(0.5)})
NEVER = BreakEven(3.0, decode={1: at(1.0)}, prefill={64: at(1.0)})


@pytest.mark.parametrize(
    ("rows", "step", "loss"),
    [(1, True, False), (2, True, False), (3, True, True), (8, True, True), (900, True, True)]
    + [(8, False, True), (64, False, True), (500, False, True), (512, False, False), (4096, False, False)],
)
def test_the_worse_of_the_measured_rows_around_decides(rows, step, loss):
    assert (LOSES.loses(rows, step) is not None) == loss
    assert (choose("auto", rows, False, rule=LOSES, step=step).step == "full") == loss


def test_the_reason_says_what_was_measured():
    assert choose("auto", 8, False, rule=LOSES, step=True).reason == (
        "8 rows: skipping was measured at 0.88x dense (0.87 to 0.89 in 12 rounds) on this machine"
    )
    assert "9 rows: skipping was measured at 0.88x dense (0.87 to 0.89 in 12 rounds) at 8 on" in LOSES.loses(9, True)
    assert ALWAYS.loses(1, True).startswith("1 row: ")


def test_an_empty_table_says_nothing():
    assert BreakEven(3.0, {}, {1: at(0.5)}).loses(1, step=True) is None


@pytest.mark.parametrize(("one", "two"), [(0.5, 1.5), (1.5, 0.5)])
def test_one_row_and_several_never_stand_for_each_other(one, two):
    rule = BreakEven(3.0, {1: at(one), 16: at(two)}, {})
    assert (rule.loses(1, True) is None) == (one > 1)
    assert all((rule.loses(rows, True) is None) == (two > 1) for rows in (2, 3, 16, 40))
    assert BreakEven(3.0, {1: at(0.5)}, {}).loses(2, True) is None
    assert BreakEven(3.0, {2: at(0.5)}, {}).loses(1, True) is None


@pytest.mark.parametrize(
    ("found", "pays"),
    [
        (at(1.02, 0.03), True),  # a loss of more than 2 % is ruled out
        (at(0.99, 0.005), True),  # even, and known to be
        (at(1.02, 0.05), False),  # perhaps a gain, perhaps a loss
        (at(0.97, 0.001), False),
        (at(1.5, 0.0, rounds=4), False),  # too few rounds for an interval
    ],
)
def test_skipping_stays_where_its_interval_is_above_the_floor(found, pays):
    assert found.pays == pays
    assert (BreakEven(3.0, {4: found}, {}).loses(4, True) is None) == pays


def test_even_is_not_losing():
    assert choose("auto", 1, False, rule=NEVER, step=True) == choose("auto", 1, False)


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "auto"])
def test_a_runtime_that_was_asked_for_stays(runtime):
    assert choose(runtime, 8, False, rule=ALWAYS, step=True) == choose(runtime, 8, False, step=True)


@pytest.mark.parametrize(("gradient", "device"), [(True, "cpu"), (False, "cuda")])
def test_gradients_and_other_devices_do_not_listen(gradient, device):
    assert choose("auto", 8, gradient, device, rule=ALWAYS) == choose("auto", 8, gradient, device)


def ruled(rule=ALWAYS, **fields):
    model = routed(**fields)
    model.break_even = rule
    return model


def text(rows: int = 2, tokens: int = 12) -> torch.Tensor:
    return some_text(rows * tokens).view(rows, tokens)


def read(model, ids):
    """As `generate` calls: with a cache."""
    return model(ids, **cache_argument(DynamicCache(config=model.base.config)))


@torch.no_grad()
def test_auto_runs_every_layer_where_it_loses():
    model, ids = ruled(), text()
    with recording(model) as record:
        found = read(model, ids)
    assert found.routes == () and record.run.all()
    with using(model, "full"):
        torch.testing.assert_close(found.logits, read(model, ids).logits)
    with skipping(model):
        assert (found.logits - read(model, ids).logits).abs().max() > 1e-3
    assert model.break_even is ALWAYS


@torch.no_grad()
def test_tokens_alone_are_read_as_the_routers_say():
    """Whoever hands in tokens without a cache looks at what the model does with them: routes, losses, states."""
    model, ids = ruled(), text()
    for options in ({}, {"use_cache": False}, {"labels": ids}):
        found, expected = model(ids, **options), routed()(ids, **options)
        assert torch.equal(runs_of(found), runs_of(expected)) and not runs_of(found).all()


def runs_of(output) -> torch.Tensor:
    return torch.stack([route.run for route in output.routes])


@torch.no_grad()
def test_steps_and_prefill_have_tables_of_their_own():
    """Each row count and phase by its own measurement, within one generation."""
    model, ids = ruled(BreakEven(3.0, decode={1: at(1.1), 2: at(0.5)}, prefill={12: at(1.1)})), text()
    with recording(model) as record:
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        model.generate(ids[:1], max_new_tokens=4, min_new_tokens=4, do_sample=False)
    shapes = [tuple(run.shape[1:]) for run in record.runs]
    assert shapes == [(2, 12)] + [(2, 1)] * 3 + [(1, 12)] + [(1, 1)] * 3
    prompts, pair, alone = (
        torch.cat([record.runs[i].flatten() for i in which]) for which in ((0, 4), (1, 2, 3), (5, 6, 7))
    )
    assert pair.all() and not prompts.all() and not alone.all()


def test_training_and_gradients_see_the_routers():
    model, ids = ruled(), text()
    assert len(model(ids, labels=ids).routes) == 3  # gradients are on
    with torch.no_grad():
        assert read(model, ids).routes == ()
        assert len(read(model.train(), ids).routes) == 3


@torch.no_grad()
def test_replayed_routes_are_obeyed():
    model, ids = ruled(), text()
    skip = torch.zeros(3, *ids.shape, dtype=torch.bool)
    cache = DynamicCache(config=model.base.config)
    assert not any(route.run.any() for route in model(ids, routes=skip, **cache_argument(cache)).routes)


@torch.no_grad()
def test_a_cache_that_hides_keys_keeps_its_layers():
    """Full layers could not read the wider keys that hiding layers wrote."""
    model = laval.attach(routed().base, laval.FlexiDepth(layers=(1, 2), router_width=8, keep_kv=False))
    model.break_even = BreakEven(3.0, decode={2: at(0.5)}, prefill={64: at(1.5)})
    assert model.generate(text(), max_new_tokens=3, do_sample=False).shape == (2, 15)


def test_quality_and_traces_show_the_skipping_model():
    plain, model, ids = routed(), ruled(), text()
    assert perplexity(model, ids.flatten(), 12, progress=False) == perplexity(plain, ids.flatten(), 12, progress=False)
    assert depth_at(model, [ids]) == depth_at(plain, [ids]) < 4
    assert torch.equal(laval.trace(model, ids).run, laval.trace(plain, ids).run)
    options = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(
        trace_generation(model, ids, **options).trace.run, trace_generation(plain, ids, **options).trace.run
    )
    assert model.break_even is ALWAYS


def test_calibration_sees_the_routers_and_leaves_the_rule():
    model, ids = ruled(), text()
    points = calibrate(model, [ids], [2.5], tolerance=0.2, progress=False)
    assert points[0]["depth"] == pytest.approx(2.5, abs=0.2) and model.break_even is ALWAYS


def test_thresholds_that_were_matched_to_a_text_have_no_rule():
    model, ids = ruled(), text()
    match_depth(model, [ids], 2.5, tolerance=0.2)
    assert model.break_even is None


def test_a_copy_with_other_weights_has_no_rule():
    model = ruled()
    assert laval.quantise(model).break_even is None and model.break_even is ALWAYS
    assert copy.deepcopy(model).break_even == ALWAYS


def test_drafts_skip_and_finding_their_depth_leaves_the_rule():
    model = ruled()
    model.config.curve = [{"depth": 2.0, "taus": [0.9] * 3}, {"depth": 3.0, "taus": [0.4] * 3}]
    draft = SkipDraft(model)
    assert draft.depth == 2.0 and model.break_even is ALWAYS

    class Whole:
        cache = None

    with recording(model) as record, torch.no_grad():
        read(model, torch.tensor([[5]]))
        draft.read(5, Whole())
    assert record.runs[0].all() and not record.runs[1].all()


@torch.no_grad()
def test_generate_hears_the_rule_from_its_prompt_on():
    for ids in (text(), text(1)):
        model = ruled()
        with recording(model) as record:
            model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        assert len(record.runs) == 4 and record.run.all()
