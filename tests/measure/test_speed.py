"""Paired decoding and prefill: the same tokens both ways, and an ideal at their own depth."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.measure import Peaks
from laval.measure.speed import Walk, decode_cell, prefill_cell, routes_of, stretched
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
    assert torch.equal(record.run[:, 0], routes_of(model, ids)[:, 8:14])


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


def test_short_texts_are_read_again():
    assert stretched(torch.tensor([1, 2, 3]), 7).tolist() == [[1, 2, 3, 1, 2, 3, 1]]
