"""Recipes: those in the repository load, and mistakes are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from laval.config import load_config, save_config
from laval.models import attach
from laval.train.recipe import Recipe
from laval.train.run import read_recipe, train
from tests.tiny import tiny_model
from tests.train.runs import ANNEAL, character_tokenizer, fresh, recipe, write_text

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_of_the_repository_load_and_survive_saving(path, tmp_path):
    loaded = read_recipe(path)
    save_config(loaded, tmp_path / "saved.yaml")
    assert read_recipe(tmp_path / "saved.yaml") == loaded


def test_the_published_recipe_is_the_published_one():
    loaded = read_recipe(RECIPES[0].with_name("flexidepth-published.yaml"))
    method = loaded.build_method()
    assert method.gate == "released" and method.layers is None and method.router == "norm_tanh"
    assert [stage.alpha for stage in loaded.stages] == [1e-4, 1e-5]
    for stage in loaded.stages:
        assert (stage.objective, stage.distill, stage.lm, stage.lr, stage.warmup) == ("anneal", 0, 1, 1e-4, 0.03)
        assert stage.batch * stage.accumulate == 32 and stage.depth is None


def test_the_published_recipe_runs(tmp_path):
    loaded = read_recipe(RECIPES[0].with_name("flexidepth-published.yaml"), [f"output={tmp_path / 'out'}"])
    data = load_config(type(loaded.data), {"length": 16, "sources": [{"path": write_text(tmp_path / "t.txt")}]})
    short = tuple(replace(stage, tokens=2 * 2 * 2 * 16, batch=2, accumulate=2, data=data) for stage in loaded.stages)
    model = attach(tiny_model("llama"), loaded.build_method())
    model.tokenizer = character_tokenizer()
    train(model, replace(loaded, data=data, stages=short))
    assert model.policy.layers == (2, 3)
    assert (tmp_path / "out" / "plugin" / "plugin.safetensors").is_file()
    assert (tmp_path / "out" / "stage-2-anneal" / "done").is_file()


def plain(tmp_path) -> dict:
    save_config(recipe(tmp_path), tmp_path / "r.yaml")
    return yaml.safe_load((tmp_path / "r.yaml").read_text())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("seeds",), 1, "unknown key; did you mean 'seed'"),
        (("seed",), "one", "seed: expected int"),
        (("stages", 0, "tokns"), 1, r"stages\[0\].tokns: unknown key; did you mean 'tokens'"),
        (("stages", 0, "objective"), "allign", r"stages\[0\].objective: expected one of 'align', 'anneal'"),
        (("stages", 0, "tokens"), 0, "tokens is 0; expected a positive number"),
        (("stages", 0, "warmup"), 3, "warmup is 3"),
        (("stages", 1, "distill"), -1, "distill is -1"),
        (("stages", 1, "depth"), None, "depth and alpha are both missing"),
        (("stages", 1, "depth"), [1, 2, 3], "expected one mean depth or a range of two"),
        (
            ("stages", 1, "alpha"),
            1e-3,
            "alpha is 0.001, which presses on routers; expected train_routers: true",
        ),
        (("data", "sources", 0, "weight"), 0, r"data.sources\[0\]: weight is 0"),
        (("data", "sources", 0, "hold_out"), 1, "hold_out is 1"),
        (("data", "sources"), [], "sources is empty"),
        (("data", "length"), 4, "length is 4"),
        (("method", "tau"), 1.0, "method: .*tau is 1.0; expected a number between 0 and 1"),
        (("method", "tau"), 0, "method: .*tau is 0.0"),
        (("method", "taus"), 0.5, "method: .*unknown key; did you mean 'tau'"),
        (("method", "name"), "flexidept", "method.name is 'flexidept'; .*did you mean 'flexidepth'"),
        (("method",), {"name": "drop_layers", "layers": [1]}, "'drop_layers', which has nothing to train"),
        (("depths",), [2, 3], "calibrate and depths belong together"),
        (("ship_depth",), 3, "ship_depth is 3.0; expected a depth within depths"),
        (("save_steps",), 0, "save_steps is 0"),
        (("threads",), -1, "threads is -1; expected at least 1"),
        (("seed",), -1, "seed is -1; expected a whole number from 0"),
        (("seed",), 2**40, "seed is 1099511627776"),
        (("price",), float("nan"), "price is nan"),
        (("stages", 0, "lr"), float("nan"), "lr is nan; expected a positive number"),
        (("stages", 0, "lr"), float("inf"), "lr is inf"),
        (("stages", 1, "distill"), float("nan"), "distill is nan"),
        (("data", "sources", 0, "weight"), float("nan"), "weight is nan"),
        (("stages",), [], "stages is empty"),
    ],
)
def test_mistakes(tmp_path, place, value, message):
    mapping = plain(tmp_path)
    inner = mapping
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(mapping))
    with pytest.raises(ValueError, match=message) as error:
        load_config(Recipe, tmp_path / "bad.yaml")
    assert "bad.yaml" in str(error.value)


def test_layers_out_of_range_and_methods_without_routers(tmp_path):
    wrong = recipe(tmp_path, method={"name": "flexidepth", "layers": [0, 2, 9]})
    with pytest.raises(ValueError, match=r"layers \[0, 2, 9\] cannot be skipped; .*remove \[0, 9\]"):
        attach(tiny_model("llama"), wrong.build_method())
    from laval.skip import DropLayers

    with pytest.raises(ValueError, match="DropPolicy, with nothing to train; attach FlexiDepth"):
        train(attach(tiny_model("llama"), DropLayers((2,))), recipe(tmp_path))


def test_mistakes_of_the_last_stage_are_found_before_the_first(tmp_path):
    nowhere = {"length": 32, "sources": [{"path": str(tmp_path / "nowhere.txt")}]}
    text = [{"path": str(tmp_path / "text.txt")}]
    for fields, message in (
        ({"stages": [ANNEAL, {**ANNEAL, "depth": [0.5]}]}, "depth is 0.5; expected 1 to 4"),
        ({"calibrate": text, "depths": [3, 5]}, "depth is 5.0; expected 1 to 4"),
        ({"stages": [ANNEAL, {**ANNEAL, "data": nowhere}]}, "nowhere.txt, which is no file"),
        ({"calibrate": nowhere["sources"], "depths": [3]}, "nowhere.txt, which is no file"),
    ):
        with pytest.raises(ValueError, match=message):
            train(fresh(), recipe(tmp_path, **fields))
        assert not (tmp_path / "out").exists()


def test_updates_and_tokens_seen(tmp_path):
    stage = recipe(tmp_path).stages[0]  # 1024 tokens, batch 4
    assert stage.steps(32) == 8 and stage.tokens_seen(32) == 1024
    assert stage.steps(32, ranks=2) == 4 and stage.tokens_seen(32, ranks=2) == 1024
    assert stage.tokens_seen(30) == 8 * 4 * 30
    assert replace(stage, tokens=10).tokens_seen(32) == 32
