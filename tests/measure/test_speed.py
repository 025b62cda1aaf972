"""Paired decoding and prefill: the same tokens both ways, and an ideal at their own depth."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.measure import Peaks
from laval.measure.speed import Walk, decode_cell, prefill_cell, routes_of, side_by_side
from laval.models import recording
from tests.evaluate.models import routed, some_text


@pytest.fixture(autouse=True)
def peaks(monkeypatch):
    known = Peaks("cpu", "float32", read_gb_s=10.0, copy_gb_s=10.0, gflop_s=50.0)
    for module in ("model", "speed"):
        monkeypatch.setattr(f"laval.measure.{module}.machine_peaks", lambda *arguments: known)


@torch.no_grad()
def test_a_walk_reads_the_text_step_by_step():
    model, ids = routed(), some_text(20)[None]
    walk = Walk(model, "auto", ids, prompt=8, steps=3)
    with recording(model) as record:
        walk()
        walk()
    assert record.run.shape == (4, 1, 6)
    assert torch.equal(record.run, routes_of(model, ids)[:, :, 8:14])


def test_cells_report_their_own_tokens():
    model, ids = routed(), some_text(40)
    cell = decode_cell(model, ids, prompt=8, steps=4, rounds=3)
    assert (cell.prompt, cell.new, cell.units, cell.times.rounds) == (8, 16, 4, 3)
    assert cell.mean_depth == pytest.approx(laval.trace(model, ids[None, :24]).depth[0, 8:].double().mean().item())
    assert cell.to_dict()["seconds"]["dense"] == pytest.approx(cell.times.median("dense") / 4)
    before = prefill_cell(model, ids, length=32, rounds=2)
    assert before.mean_depth == pytest.approx(laval.trace(model, ids[None, :32]).mean_depth)
    assert model.runtime == "auto"


def test_the_ideal_follows_the_depth():
    model, ids = routed(), some_text(40)
    model.policy.set_thresholds([1e-9] * 3)
    all_run = decode_cell(model, ids, prompt=8, steps=2, rounds=1)
    model.policy.set_thresholds([1 - 1e-9] * 3)
    all_skip = decode_cell(model, ids, prompt=8, steps=2, rounds=1)
    assert all_run.mean_depth == 4 and all_run.ideal < 1  # routers cost something
    assert all_skip.mean_depth == 1 and all_skip.ideal > 1.3


def test_sequences_side_by_side_are_parts_of_the_text():
    model, ids = routed(), some_text(80)
    cell = decode_cell(model, ids, prompt=8, steps=2, rounds=2, batch=3)
    rows = ids[: 3 * 14].view(3, 14)
    assert cell.batch == 3
    assert cell.mean_depth == pytest.approx(laval.trace(model, rows).depth[:, 8:].double().mean().item())


def test_the_stock_model_is_timed_beside():
    model, ids = routed(), some_text(40)
    known = prefill_cell(model, ids, length=8, rounds=3).to_dict()
    assert set(known["seconds"]) == {"dense", "skipping", "stock"}
    assert known["dense_over_stock"] > 0 and known["share_of_ideal"] == known["ratio"] / known["ideal"]


def test_short_texts_are_read_again():
    assert side_by_side(torch.tensor([1, 2, 3]), 1, 7).tolist() == [[1, 2, 3, 1, 2, 3, 1]]
    assert side_by_side(torch.tensor([1, 2, 3]), 2, 2).tolist() == [[1, 2], [3, 1]]
