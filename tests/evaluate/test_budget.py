"""Thresholds are found on measured depth, and found again by set_depth."""

from __future__ import annotations

import pytest
import torch

from laval.evaluate import budget as budget_module
from laval.evaluate import calibrate, depth_at, match_depth, perplexity, text_batches
from laval.models import attach, dense, set_depth
from laval.skip import DropLayers, FlexiDepth
from tests.evaluate.models import routed, some_text
from tests.tiny import tiny_model

TEXT = some_text(601)
BATCHES = text_batches(TEXT, length=64, batch=4)  # the last batch is ragged


@pytest.mark.parametrize("gate", ["hard_mask", "released"])
def test_calibrated_depths_are_met(gate):
    model = routed(gate=gate)
    before = dict(model.policy.thresholds)
    curve = calibrate(model, BATCHES, [3.5, 2, 3], progress=False)
    assert model.policy.thresholds == before
    assert [point["depth"] for point in curve] == pytest.approx([2, 3, 3.5], abs=0.02)
    model.config.curve = curve
    for point in curve:
        assert len(set(point["taus"])) == 1 and len(point["taus"]) == 3
        set_depth(model, point["depth"])
        score = perplexity(model, TEXT, length=64, batch=4, progress=False)
        assert score.mean_depth == pytest.approx(point["depth"], abs=1e-9)
        assert score.nats == pytest.approx(point["nats"])


@pytest.mark.parametrize("depth", [1.5, 2.25, 3.8, 4])
def test_a_text_is_matched_in_few_forwards(depth, monkeypatch):
    model, forwards = routed("gemma2"), []
    measure = budget_module.measure
    monkeypatch.setattr(budget_module, "measure", lambda *args: forwards.append(1) or measure(*args))
    found = match_depth(model, BATCHES, depth)
    assert found == pytest.approx(depth, abs=0.02) and len(forwards) <= 6
    assert depth_at(model, BATCHES) == found


def test_pads_do_not_pull_the_threshold():
    model, pads = routed(), torch.zeros(8, 64, dtype=torch.int64)
    rows = TEXT[:512].view(8, 64)
    padded = {
        "input_ids": torch.cat([pads, rows], dim=1),
        "attention_mask": torch.cat([pads, torch.ones_like(rows)], dim=1),
    }
    match_depth(model, [padded], 2.5)
    assert depth_at(model, [rows]) == pytest.approx(2.5, abs=0.02)


def test_scores_that_feed_back_are_followed():
    """Quantiles of the first scores alone would miss: what lower layers skip moves the scores above."""
    model = routed()
    for adapter in model.policy.adapters.values():
        adapter.up_proj.weight.data.mul_(10)
    budget_module.apply(model, -16)
    seen = budget_module.measure(model, BATCHES)
    budget_module.apply(model, seen.quantile((2.2 - 1) / 3))
    assert abs(depth_at(model, BATCHES) - 2.2) > 0.05
    assert match_depth(model, BATCHES, 2.2) == pytest.approx(2.2, abs=0.02)


def test_budgets_that_cannot_be_met():
    fresh = attach(tiny_model("llama"), FlexiDepth(layers=(1, 2, 3)))
    with pytest.raises(ValueError, match="train them"):
        match_depth(fresh, BATCHES, 2.5)
    with pytest.raises(ValueError, match="expected 1 to 4 layers"):
        calibrate(routed(), BATCHES, [0.5], progress=False)
    with pytest.raises(ValueError, match="no thresholds"):
        match_depth(attach(tiny_model("llama"), DropLayers((2,))), BATCHES, 3.5)
    with dense(routed()) as model, pytest.raises(ValueError, match="runtime is 'dense'"):
        match_depth(model, BATCHES, 3)
    assert depth_at(attach(tiny_model("llama"), DropLayers((2,))), BATCHES) == 3


def test_a_point_that_cannot_be_met_is_said_aloud(caplog):
    fresh = attach(tiny_model("llama"), FlexiDepth(layers=(1, 2, 3)))
    (point,) = calibrate(fresh, BATCHES, [2.5], progress=False)
    assert point["depth"] in (1, 4) and "cannot be met" in caplog.text
