"""`import laval`: complete, offline, without the Trainer. `laval --help`: without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import laval
from laval.commands.verbs import VERBS, command

SCRIPT = """
import socket, sys
def refused(*arguments, **options): raise OSError("network")
socket.socket.connect = socket.getaddrinfo = refused
import laval
from transformers import AutoConfig, AutoModelForCausalLM
assert type(AutoConfig.for_model("laval_adaptive")) is laval.AdaptiveConfig
assert AutoModelForCausalLM._model_mapping[laval.AdaptiveConfig] is laval.AdaptiveForCausalLM
for heavy in ("transformers.trainer", "laval.train.run", "matplotlib", "laval.commands"):
    assert heavy not in sys.modules, heavy
assert callable(laval.train) and laval.train.__name__ == "laval.train"
from laval.train.recipe import Recipe
assert callable(laval.train)
"""


VERB = """
import sys, laval_command
sys.argv = ["laval", *sys.argv[1:]]
try:
    laval_command.main()
except SystemExit as end:
    assert not end.code, end.code
"""
HELP = f"""{VERB}
heavy = {{"torch", "transformers", "numpy", "safetensors"}} & set(sys.modules)
assert not heavy, heavy
"""


def python(script: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_import_registers_and_stays_light():
    python(SCRIPT)


@pytest.mark.parametrize("words", [("--help",), ("--version",), *((name, "--help") for name in VERBS)])
def test_help_does_not_wait_for_torch(words):
    assert "laval" in python(HELP, *words)


def test_help_names_every_verb_with_its_own_words():
    page = python(HELP, "--help")
    for name, verb in VERBS.items():
        assert name in page and verb.help[:30] in page
        assert command(name).help.startswith(verb.help), name


@pytest.mark.slow
@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_found_in_a_process_of_its_own(name):
    """Each is the first to import what it needs: an import in a circle would show here only."""
    assert f"laval {name}" in python(VERB, name, "--help")


@pytest.mark.slow
def test_a_verb_works_in_a_process_of_its_own(place):
    words = ("generate", place.plugin, "Noon?", "--max-new-tokens", "3", "--json")
    assert '"new_tokens": 3' in python(VERB, *map(str, words))


def test_a_verb_may_do_without_the_package_being_whole():
    """In the process of the command, `laval` itself holds no more than its version."""
    absent = set(laval.__all__) - {"__version__", "train"}
    for path in Path(laval.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "laval":
                assert node.attr not in absent, f"{path}:{node.lineno}: import {node.attr} from where it is defined"


def test_every_public_name_is_there_and_says_what_it_is():
    for name in laval.__all__:
        assert getattr(laval, name) is not None
        assert name == "__version__" or getattr(laval, name).__doc__, name
