"""The end of a run: the curve, the depth it ships with, and the card."""

from __future__ import annotations

import subprocess

import pytest
import torch
import yaml

import laval.models.load
import laval.train
from laval.config import save_config
from laval.models import set_depth
from laval.models.plugin import load_plugin
from laval.train import card as card_module
from laval.train.card import card
from laval.train.finish import finish, on_curve
from laval.train.run import train
from tests.tiny import tiny_model
from tests.train.runs import ANNEAL, LAYERS, fresh, recipe, routed, weights, write_chat, write_text


def calibrated(tmp_path, **fields):
    source = {"path": str(tmp_path / "text.txt")}
    return recipe(tmp_path, calibrate=[source], calibrate_tokens=512, depths=[2, 2.5, 3, 3.5], **fields)


def test_a_run_ends_with_a_calibrated_plugin_in_bf16(tmp_path):
    run = calibrated(tmp_path, ship_depth=3)
    model = train(fresh(), run)
    saved = load_plugin(run.output / "plugin", base=tiny_model("llama"))
    curve = saved.config.curve
    assert [point["depth"] for point in curve] == pytest.approx([2, 2.5, 3, 3.5], abs=0.2)
    assert all(len(point["taus"]) == len(LAYERS) and point["nats"] > 0 for point in curve)
    set_depth(model, on_curve(curve, 3))
    assert saved.policy.thresholds == pytest.approx(model.policy.thresholds, abs=1e-9)
    assert torch.equal(weights(saved), weights(model))
    assert torch.equal(weights(model).bfloat16().double(), weights(model))
    (tensors,) = (run.output / "plugin").glob("*.safetensors")
    assert tensors.stat().st_size < 2 * weights(model).numel() + 4000
    reopened = laval.models.load.load(run.output / "plugin", base=tiny_model("llama"))
    assert set_depth(reopened, 3) == pytest.approx(3, abs=0.2)


def test_what_is_measured_is_what_was_saved(tmp_path):
    """Depth and nats of the curve belong to the rounded weights."""
    run, model = calibrated(tmp_path), routed()
    run.output.mkdir()
    finish(model, run)
    again = load_plugin(run.output / "plugin", base=tiny_model("llama"))
    again.tokenizer = model.tokenizer
    before = [dict(point) for point in again.config.curve]
    finish(again, run)
    for a, b in zip(before, again.config.curve, strict=True):
        assert a["depth"] == pytest.approx(b["depth"], abs=1e-6) and a["nats"] == pytest.approx(b["nats"], abs=1e-5)


def test_without_calibration_the_last_stage_is_the_plugin(tmp_path):
    run = recipe(tmp_path, stages=[ANNEAL])
    model = train(fresh(), run)
    saved = load_plugin(run.output / "plugin", base=tiny_model("llama"))
    result = load_plugin(run.output / "stage-1-anneal" / "result", base=tiny_model("llama"))
    assert saved.config.curve == [] and saved.policy.thresholds == result.policy.thresholds
    assert torch.equal(weights(saved), weights(result).bfloat16().double()) and not model.training


def test_a_shipped_depth_at_the_end_of_the_curve_is_taken_as_measured():
    curve = [{"depth": 2.01}, {"depth": 2.99}]
    assert [on_curve(curve, depth) for depth in (2, 2.5, 3)] == [2.01, 2.5, 2.99]


def test_the_card_says_what_the_plugin_was_made_from(tmp_path):
    chat = {"path": str(write_chat(tmp_path / "chat.jsonl")), "weight": 3.0, "hold_out": 0.05}
    own = {"length": 16, "sources": [{"path": str(tmp_path / "text.txt"), "weight": 2.0}]}
    run = recipe(
        tmp_path,
        data={"length": 32, "sources": [{"path": str(tmp_path / "text.txt")}, chat]},
        stages=[ANNEAL, {**ANNEAL, "data": own}],
        card={"licence": "Apache-2.0"},
        seed=7,
    )
    run.output.mkdir()
    (run.output / "metrics.jsonl").write_text('{"stage": "1-anneal", "step": 6, "seconds": 90}\n')
    text = card(routed(), run)
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "laval"
    for line in (
        f"| {tmp_path / 'text.txt'} | 25.0% | 0% |",
        f"| {tmp_path / 'chat.jsonl'} | 75.0% | 5% |",
        "Instead, in stage 2:\n\n| source |",
        f"| {tmp_path / 'text.txt'} | 100.0% | 0% |",
        "| 1-anneal | 768 | 1.5 |",
        "| 2-anneal | 768 | 0.0 |",
        "- seed: 7",
        "- wall time: 1.5 minutes",
        f"- versions: laval {laval.__version__}, torch {torch.__version__}, transformers ",
        "- licence: Apache-2.0",
        "## Results\n\nNot measured yet",
    ):
        assert line in text, line
    written = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert written["stages"][1]["data"]["sources"][0]["weight"] == 2.0


def test_the_commit_is_that_of_the_source(tmp_path, monkeypatch):
    package = tmp_path / "laval"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(card_module.laval, "__file__", str(package / "__init__.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert card_module.commit() == "unknown"
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(package), *command], check=True)
    head = (package / ".git" / "refs" / "heads" / "main").read_text().strip()
    assert card_module.commit() == head
    (package / "__init__.py").write_text("changed")
    assert card_module.commit() == f"{head} with changes"


def test_the_package_can_be_called(tmp_path):
    run = recipe(tmp_path, stages=[ANNEAL])
    other = write_text(tmp_path / "other.txt", seed=3)
    save_config(run, tmp_path / "recipe.yaml")
    first = laval.train(fresh(), other, tmp_path / "recipe.yaml")
    assert str(other) in (run.output / "plugin" / "README.md").read_text()
    again = laval.train(fresh(), None, recipe(tmp_path, stages=[ANNEAL], output=str(tmp_path / "again")))
    assert not torch.equal(weights(first), weights(again))
    with pytest.raises(ValueError, match="recipe is missing"):
        laval.train(fresh(), other)
