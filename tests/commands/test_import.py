"""`import laval`: complete, offline, without the Trainer."""

from __future__ import annotations

import subprocess
import sys

import laval

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


def test_a_fresh_import_registers_and_stays_light():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_says_what_it_is():
    for name in laval.__all__:
        assert getattr(laval, name) is not None
        assert name == "__version__" or getattr(laval, name).__doc__, name
