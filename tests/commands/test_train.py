"""laval train: a recipe in, a plug-in out; stopped runs go on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

import laval
from laval.config import load_config
from laval.models.record import read_record
from laval.train.recipe import Recipe
from laval.train.run import model_for
from laval.train.trainer import ObjectiveTrainer
from tests.commands.conftest import ROUTED, run


def recipe(place, folder) -> dict:
    return {
        "model": str(place.base),
        "output": str(folder / "run"),
        "method": {"name": "flexidepth", "layers": list(ROUTED), "router_width": 8, "adapter_width": 8},
        "data": {"length": 32, "sources": [{"path": str(place.text)}]},
        "stages": [{"objective": "anneal", "tokens": 512, "batch": 2, "lr": 0.01, "depth": [3]}],
        "save_steps": 2,
        "log_steps": 1,
    }


def written(place, folder, **changes):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe(place, folder) | changes), encoding="utf-8")
    return path


def test_train_leaves_a_plugin_and_does_not_train_twice(place, tmp_path):
    path = written(place, tmp_path)
    said = run("train", path, "--json")
    assert said.code == 0, said.err
    plugin = said.document["plugin"]
    assert read_record(Path(plugin) / "laval.json")[0].method["layers"] == list(ROUTED)
    assert "anneal" in said.err and "512" in said.err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 9))
    assert "done" in run("train", path).out
    assert (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines() == lines
    assert run("generate", plugin, "Noon?", "--max-new-tokens", 3, "--json").document["new_tokens"] == 3
    message = run("train", path, "--no-resume").err
    assert "holds an earlier run" in message and "--set output=" in message


def test_set_wins_over_the_recipe(place, tmp_path):
    path = written(place, tmp_path)
    output = tmp_path / "other"
    said = run("train", path, "--set", f"output={output}", "--set", "seed=3", "--json")
    assert said.code == 0, said.err
    kept = load_config(Recipe, output / "recipe.yaml")
    assert kept.seed == 3 and kept.output == output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modle": "x"}, ("modle", "did you mean 'model'")),
        ({"method": {"name": "flexidepth", "tau": 1.0}}, ("tau", "between 0 and 1")),
        ({"method": {"name": "flexidepht"}}, ("flexidepht", "flexidepth")),
        ({"method": {"name": "flexidepth", "layers": [0, 1]}}, ("layers", "from 1 to 3")),
        ({"data": {"length": 32, "sources": [{"path": "nowhere.txt"}]}}, ("nowhere.txt", "expected")),
        ({"stages": []}, ("stages is empty",)),
    ],
)
def test_bad_recipes_are_refused(place, tmp_path, change, words):
    said = run("train", written(place, tmp_path, **change))
    assert said.code == 2
    for word in words:
        assert word in said.err


UNUSABLE = {
    "missing": (None, "text.txt"),
    "empty": ("", "empty"),
    "short": ("Noon.", "5 tokens; expected at least one sequence of 32"),
    "chat": ('{"messages": [{"role": "user", "content": "Noon?"}]}\n' * 9 + '{"prompt": 1}\n', "line 10"),
}


@pytest.mark.parametrize("use", ["calibrate", "second stage"])
@pytest.mark.parametrize("case", UNUSABLE)
def test_text_that_is_needed_late_is_checked_before_training(place, tmp_path, case, use):
    content, word = UNUSABLE[case]
    text = tmp_path / ("chat.jsonl" if case == "chat" else "text.txt")
    if content is not None:
        text.write_text(content, encoding="utf-8")
    source, (stage,) = {"path": str(text)}, recipe(place, tmp_path)["stages"]
    changes = {
        "calibrate": {"calibrate": [{"path": str(place.text)}, source], "depths": [2, 3]},
        "second stage": {"stages": [stage, stage | {"data": {"length": 32, "sources": [source]}}]},
    }
    said = run("train", written(place, tmp_path, **changes[use]))
    assert said.code == 2 and word in said.err and str(text) in said.err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_writes_a_checkpoint_and_names_the_command(place, tmp_path, monkeypatch):
    once = ObjectiveTrainer.training_step

    def stopped_at_third(self, *arguments, **options):
        if self.state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return once(self, *arguments, **options)

    monkeypatch.setattr(ObjectiveTrainer, "training_step", stopped_at_third)
    path = written(place, tmp_path)
    said = run("train", path)
    assert said.code == 130
    assert "go on with: laval train" in said.out + said.err
    assert any((tmp_path / "run" / "stage-1-anneal").glob("checkpoint-[34]"))
    monkeypatch.setattr(ObjectiveTrainer, "training_step", once)
    again = run("train", path, "--json")
    assert again.code == 0 and "goes on at step" in again.err


def test_laval_train_is_a_verb_and_a_package(place, tmp_path):
    wanted = load_config(Recipe, recipe(place, tmp_path))
    model = laval.train(model_for(wanted), place.text, wanted)
    assert isinstance(model, laval.AdaptiveForCausalLM)
    assert (tmp_path / "run" / "stage-1-anneal" / "done").exists()
