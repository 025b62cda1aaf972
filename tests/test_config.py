from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laval.config import load_config, save_config, to_mapping


@dataclass(frozen=True)
class Stage:
    name: str
    alpha: float = 1e-3


@dataclass(frozen=True)
class Train:
    steps: int
    lr: float = 1e-4
    warm: bool = True
    kind: Literal["on", "off", 1] = "on"
    layers: tuple[int, ...] = ()
    stages: tuple[Stage, ...] = ()
    betas: tuple[float, float] = (0.9, 0.95)
    names: list[str] = field(default_factory=list)
    clip: float | None = None
    tag: str | None = None
    depth: int | Literal["auto"] = "auto"
    out: Path = Path("run")

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: expected 1 or more")


@dataclass(frozen=True)
class Recipe:
    train: Train
    model: str = "smollm2"
    extra: Stage | None = None
    weights: dict[str, float] = field(default_factory=dict)


def recipe(**train):
    return {"train": {"steps": 10, **train}}


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def test_yaml_becomes_dataclasses(tmp_path):
    text = "train:\n  steps: 5\n  lr: 1e-5\n  layers: [3, 4]\n  stages: [{name: align}, {name: anneal, alpha: 0}]\n"
    config = load_config(Recipe, write(tmp_path, text))
    assert config.train == Train(steps=5, lr=1e-5, layers=(3, 4), stages=(Stage("align"), Stage("anneal", 0.0)))
    assert config.model == "smollm2" and isinstance(config.train.stages[1].alpha, float)


def test_round_trip(tmp_path):
    config = Recipe(Train(5, lr=1e-7, clip=1.0, tag="007", depth=3, stages=(Stage("é"),)), "m", Stage("x"), {"a": 1.0})
    save_config(config, tmp_path / "c.yaml")
    assert load_config(Recipe, tmp_path / "c.yaml") == config == load_config(Recipe, to_mapping(config))


@settings(max_examples=40, deadline=None)
@given(st.builds(Stage, st.text(st.characters(codec="utf-8")), st.floats(allow_nan=False)))
def test_any_text_and_number_round_trips_through_yaml(tmp_path_factory, stage):
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    save_config(stage, path)
    assert load_config(Stage, path) == stage


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"trian": {}}, ["trian", "did you mean 'train'", "model"]),
        (recipe(step=1), ["train.step: unknown key", "'steps'"]),
        ({"train": {"lr": 1.0}}, ["train.steps", "missing", "int"]),
        (recipe(stages=[{"name": "a"}, {"alpha": 1}]), ["train.stages[1].name", "missing"]),
        (recipe(steps="ten"), ["train.steps", "expected int", "'ten'"]),
        (recipe(steps=True), ["train.steps", "expected int", "True"]),
        (recipe(steps=2.0), ["train.steps", "expected int", "2.0"]),
        (recipe(lr="fast"), ["train.lr", "expected float", "'fast'"]),
        (recipe(lr="nan"), ["train.lr", "expected float"]),
        (recipe(warm=1), ["train.warm", "expected bool"]),
        (recipe(kind=False), ["train.kind", "one of 'on', 'off', 1", "quotes"]),
        (recipe(kind=True), ["train.kind", "one of"]),
        (recipe(layers=3), ["train.layers", "a list of int"]),
        (recipe(layers=[1, "x"]), ["train.layers[1]", "expected int"]),
        (recipe(betas=[0.9]), ["train.betas", "a list of 2"]),
        (recipe(clip="x"), ["train.clip", "expected float"]),
        (recipe(depth="many"), ["train.depth", "int or one of 'auto'"]),
        (recipe(steps=0), ["config: train: steps=0: expected 1 or more"]),
        ({"train": 3}, ["train", "keys and values (steps"]),
        (recipe() | {"extra": {"nam": "x"}}, ["extra.nam", "'name'"]),
        (recipe() | {"weights": {"a": "x"}}, ["weights.a", "expected float"]),
    ],
)
def test_errors_name_the_place(mapping, words):
    with pytest.raises(ValueError) as caught:
        load_config(Recipe, mapping)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: [", ["recipe.yaml", "not valid YAML"]),
        ("- 1", ["recipe.yaml", "keys and values"]),
        ("train:\n  steps: 1\n  steps: 2\n", ["recipe.yaml", "'steps' is given twice"]),
        ("", ["recipe.yaml", "train", "missing"]),
        ("train: {steps: 1}\nmodle: x", ["recipe.yaml: modle", "'model'"]),
    ],
)
def test_file_errors_name_the_file(tmp_path, text, words):
    with pytest.raises(ValueError) as caught:
        load_config(Recipe, write(tmp_path, text))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_binary_file_is_named(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ValueError, match=r"run\.yaml: not UTF-8 at byte 3; expected a YAML text file"):
        load_config(Recipe, tmp_path / "run.yaml")


def test_missing_file():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        load_config(Recipe, "nowhere.yaml")


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("train.lr=1e-5", lambda c: c.train.lr == 1e-5),
        ("train.kind=off", lambda c: c.train.kind == "off"),
        ("train.tag=007", lambda c: c.train.tag == "007"),
        ("train.tag=null", lambda c: c.train.tag is None),
        ("train.depth=3", lambda c: c.train.depth == 3),
        ("train.depth=auto", lambda c: c.train.depth == "auto"),
        ("train.layers=[1, 2]", lambda c: c.train.layers == (1, 2)),
        ("train.out=1.5", lambda c: c.train.out == Path("1.5")),
        ("extra.name=a=b", lambda c: c.extra == Stage("a=b")),
        ("model=no", lambda c: c.model == "no"),
    ],
)
def test_overrides_are_read_by_the_type_of_the_field(override, read):
    source = recipe(lr=1.0)
    assert read(load_config(Recipe, source, [override]))
    assert source == recipe(lr=1.0)  # the caller's mapping is untouched


def test_later_overrides_build_on_earlier_ones():
    config = load_config(Recipe, {}, ["train={steps: 1, lr: 2}", "train.steps=3"])
    assert (config.train.steps, config.train.lr) == (3, 2.0)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trian.lr=1", ["override 'trian.lr=1'", "'train'"]),
        ("train.lrr=1", ["train.lrr", "'lr'"]),
        ("train.lr=fast", ["override 'train.lr=fast'", "train.lr", "expected float"]),
        ("train.stages.name=x", ["train.stages", "set it whole"]),
        ("train.kind=maybe", ["one of 'on'"]),
        ("train.lr", ["KEY.PATH=VALUE"]),
    ],
)
def test_override_errors(override, words):
    with pytest.raises(ValueError) as caught:
        load_config(Recipe, recipe(), [override])
    assert all(word in str(caught.value) for word in words), caught.value
