"""Runs that are stopped go on as if they had not been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from laval.config import save_config
from laval.models.plugin import load_plugin
from laval.train.checkpoint import newest
from laval.train.metrics import read_metrics
from laval.train.objectives import Anneal
from laval.train.run import read_recipe, train
from tests.tiny import tiny_model
from tests.train.runs import ALIGN, ANNEAL, fresh, recipe, weights

ROOT = Path(__file__).parents[2]
SCRIPT = "import sys; from tests.train.test_resume import slowly; slowly(sys.argv[1])"


def slowly(path: str) -> None:
    """In a process of its own: train, taking a while for each step."""
    torch.set_num_threads(1)
    forward = Anneal.forward

    def slow(self, input_ids):
        time.sleep(0.3)
        return forward(self, input_ids)

    Anneal.forward = slow
    train(fresh(), read_recipe(path))


def stopped_by(number: int, run, folder: Path) -> str:
    """What a run says that got a signal after its third step."""
    save_config(run, folder / "recipe.yaml")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder / "recipe.yaml")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.time() + 120
    while len(read_metrics(run.output / "metrics.jsonl")) < 3 and process.poll() is None and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path, number):
    run = recipe(tmp_path, stages=[ANNEAL], save_steps=100)
    said = stopped_by(number, run, tmp_path)
    assert f"stopped; go on with: laval train {run.output / 'recipe.yaml'}" in said
    step = int(newest(run.output / "stage-1-anneal").name.split("-")[1])
    assert 3 <= step < 6 and f"1-anneal stopped at step {step} of 6" in said
    resumed = train(fresh(seed=9), read_recipe(run.output / "recipe.yaml"))  # nothing comes from the new model
    whole = train(fresh(), recipe(tmp_path, stages=[ANNEAL], output=str(tmp_path / "whole")))
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=1e-6)
    assert resumed.policy.thresholds == pytest.approx(whole.policy.thresholds, abs=1e-6)
    assert [entry["step"] for entry in read_metrics(run.output / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


class Enough(Exception):
    """The moment a test kills a run at."""


def test_a_run_killed_at_any_place_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    """As if by kill -9: between checkpoints, and in the second stage."""
    run, forward = recipe(tmp_path, stages=[ALIGN, {**ANNEAL, "accumulate": 2, "tokens": 1024}]), Anneal.forward

    def dies(self, input_ids):
        if self.step == 3:
            raise Enough
        return forward(self, input_ids)

    monkeypatch.setattr(Anneal, "forward", dies)
    with pytest.raises(Enough):
        train(fresh(), run)
    monkeypatch.undo()
    resumed = train(fresh(seed=5), run)
    whole = train(fresh(), recipe(tmp_path, stages=run.stages, output=str(tmp_path / "whole")))
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=1e-6)
    assert len(read_metrics(run.output / "metrics.jsonl")) == 8 + 4


def test_another_method_does_not_go_on_in_the_same_folder(tmp_path):
    run = recipe(tmp_path, stages=[ANNEAL])
    train(fresh(), run)
    with pytest.raises(ValueError, match=r"adapter_width=16.*but the model has .*adapter_width=8.*another output"):
        train(fresh(adapter_width=8), run)


def test_a_second_signal_does_not_wait():
    from laval.train.stop import stoppable

    with pytest.raises(KeyboardInterrupt), stoppable() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_finished_run_is_read_back(tmp_path, monkeypatch):
    run = recipe(tmp_path)
    first = train(fresh(), run)
    monkeypatch.setattr(Anneal, "forward", lambda *_: pytest.fail("trained again"))
    again = train(fresh(seed=3), run)
    assert torch.equal(weights(first), weights(again))
    saved = load_plugin(run.output / "plugin", base=tiny_model("llama"))
    assert torch.equal(weights(saved), weights(again))
