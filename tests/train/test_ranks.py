"""Several processes train like one with a larger batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from laval.config import save_config
from laval.models.plugin import load_plugin
from laval.train.metrics import read_metrics
from laval.train.run import read_recipe, train
from tests.tiny import tiny_model
from tests.train.runs import ALIGN, ANNEAL, fresh, recipe, weights

ROOT = Path(__file__).parents[2]


def one_rank(path: str) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    train(fresh(), read_recipe(path))


def twice(stage: dict) -> dict:
    return {**stage, "batch": 2 * stage["batch"]}


@pytest.mark.slow
def test_two_ranks_are_one_with_twice_the_batch(tmp_path):
    stages = [{**ALIGN, "batch": 2, "focus": 0.2}, {**ANNEAL, "batch": 2}]
    run = recipe(tmp_path, stages=stages)
    save_config(run, tmp_path / "recipe.yaml")
    (tmp_path / "rank.py").write_text("import sys; from tests.train.test_ranks import one_rank; one_rank(sys.argv[1])")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "rank.py")]
    done = subprocess.run(
        [sys.executable, *command, str(tmp_path / "recipe.yaml")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-9000:]
    one = recipe(tmp_path, stages=[twice(stage) for stage in stages], output=str(tmp_path / "one"))
    train(fresh(), one)
    both = [read_metrics(folder.output / "metrics.jsonl") for folder in (run, one)]
    for a, b in zip(*both, strict=True):
        for name in ("loss", "grad_norm", "depth"):
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), (name, a, b)
    ranks, alone = (load_plugin(r.output / "stage-2-anneal" / "result", base=tiny_model("llama")) for r in (run, one))
    torch.testing.assert_close(weights(ranks), weights(alone), rtol=0, atol=1e-4)
    assert json.loads((run.output / "sensitivity.json").read_text())
    assert "- processes: 2" in (run.output / "plugin" / "README.md").read_text()
