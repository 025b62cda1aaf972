"""The README cannot rot: its Python and its commands run, on a tiny model instead of the default one."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from laval.commands.verbs import VERBS
from laval.config import load_config
from laval.train.recipe import Recipe
from tests.commands.conftest import run
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
HEAVY = ("demo", "train")  # their own tests run them


def blocks(language: str) -> list[str]:
    """The fenced blocks of the README in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.S | re.M)


def commands() -> list[str]:
    return [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ laval ")]


def tiny(text: str, place) -> str:
    """Names of models and files as the tests have them, and a depth that four layers can have."""
    known = {
        "Qwen/Qwen3-0.6B": place.base,
        "runs/smollm2-flexidepth/plugin": place.plugin,
        "smollm2": place.plugin,
        "notes.txt": place.text,
    }
    pattern = "|".join(map(re.escape, known))
    text = re.sub(pattern, lambda match: str(known[match.group()]), text)
    return re.sub(r"(?<=set_depth\(model, )27|(?<=--depth )27", "2.5", text)


def test_there_is_something_to_run():
    assert len(blocks("python")) >= 2 and len(commands()) >= 4


@pytest.mark.parametrize("source", blocks("python"), ids=lambda source: source.splitlines()[-1][:40])
def test_python_runs(source, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(tiny(source, place), "README.md", "exec"), {})
    if "depth.html" in source:
        assert (tmp_path / "depth.html").stat().st_size > 5000
        assert "of 4 layers" in capsys.readouterr().out


@pytest.mark.parametrize("command", [line for line in commands() if line.split()[1] not in HEAVY])
def test_commands_run(command, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(tiny(command, place))[1:]
    said = run(*words, *(["--rounds", "1", "--prompt", "16", "--prefill", "32"] if words[0] == "bench" else []))
    assert said.code == 0, said.err


def test_heavy_commands_name_what_is_there():
    for command in commands():
        for word in shlex.split(command):
            assert not word.endswith(".yaml") or load_config(Recipe, ROOT / word)


def test_the_recipe_is_a_recipe():
    for source in blocks("yaml"):
        recipe = load_config(Recipe, yaml.safe_load(source))
        assert recipe.stages and recipe.ship_depth in recipe.depths


def test_every_verb_is_in_the_table():
    shown = set(re.findall(r"^\| `laval (\w+)", README, re.M))
    assert shown == set(VERBS)


def test_places_named_exist():
    named = set(re.findall(r"`((?:tests|benchmarks|recipes|src)/[\w./-]+)`|\]\((\w+\.md)\)", README))
    tree = re.findall(r"^      (\w+/|\w+\.py) ", README, re.M)
    for name in [a or b for a, b in named] + [f"src/laval/{name}" for name in tree]:
        assert (ROOT / name).exists(), name
    folders = {path.name for path in (ROOT / "src" / "laval").iterdir() if (path / "__init__.py").is_file()}
    assert {name.rstrip("/") for name in tree if name.endswith("/")} == folders
