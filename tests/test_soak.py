"""A short soak on tiny models, and that a soak would find what it looks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.soak import memory, soak
from benchmarks.soak_cases import NEVER, WAYS, plan_of, run

COUNT = 40


def test_a_short_soak_finds_nothing():
    plans = [plan_of(seed, small=True) for seed in range(COUNT)]
    assert {plan.way for plan in plans} == set(WAYS)
    record = soak(plans, every=10, warm=10)
    assert record["failures"] == [] and record["generations"] == COUNT
    caches = [each["caches"] for each in record["memory"]["noted"]]
    assert caches[-1] <= caches[1] + 1  # the last generation's may still be held


def test_a_seed_is_a_plan():
    assert plan_of(7) == plan_of(7) != plan_of(8)


def test_a_wrong_fast_path_is_found(monkeypatch):
    """One part in a hundred added to every branch that a lane takes by itself."""
    monkeypatch.setattr(
        "laval.runtime.decoder.scaled", lambda update, scale: 1.01 * (update if scale is None else update * scale)
    )
    alone = {
        "subject": ("llama", "hard_mask", "float64"),
        "way": "greedy",
        "runtime": "auto",
        "lengths": (9,),
        "new": 6,
    }
    rest = {"depth": None, "end": NEVER, "recorded": False, "wants_logits": True, "reload": False}
    record = soak([replace(plan_of(3, small=True), **alone, **rest)])
    assert [each["seed"] for each in record["failures"]] == [3] and "Mismatch" in record["failures"][0]["error"]


@pytest.mark.parametrize(("growth", "leaks"), [(0, False), (2000, False), (20_000, True)])
def test_memory_may_waver_but_not_grow(growth, leaks):
    noted = [(n, 10**9 + growth * n + 2 * 10**6 * (n % 100 == 0), 3) for n in range(0, 2001, 50)]
    found = memory(noted, warm=200)
    assert found["leaks"] is leaks and found["bytes_per_generation"] == pytest.approx(growth, abs=1000)


def test_paged_answers_are_told_of_no_end():
    """A seed whose greedy answer goes through the token that other ways end at."""
    run(plan_of(806))
