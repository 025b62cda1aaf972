"""A tiny model with tokenizer and chat template in a folder, a calibrated plug-in for it, and a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import laval
from laval.commands import app
from laval.evaluate import calibrate, read_text, text_batches
from laval.measure import Peaks
from laval.models.base import load_base
from laval.models.plugin import save_plugin
from tests.tiny import tiny_model

LAYERS, ROUTED, CONTEXT = 4, (1, 2, 3), 512
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
PROSE = "The ferry crosses the river at noon. Nobody waits long, for the boat can be seen from the hill.\n" * 12


@dataclass(frozen=True)
class Place:
    """Folders and files of the tests of one session."""

    base: Path
    plugin: Path
    text: Path
    chat: Path


@dataclass(frozen=True)
class Said:
    """What a command wrote, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        return json.loads(self.out.strip().splitlines()[-1])


def run(*words) -> Said:
    """`laval WORDS` in this process."""
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="laval", env={"COLUMNS": "100"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and three special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    inner = Tokenizer(models.BPE(known, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


def make_plugin(base: Path, folder: Path, text: Path) -> None:
    """Random routers and adapters with some spread, calibrated to three depths."""
    stock, tokens = load_base(base)
    model = laval.attach(stock, laval.FlexiDepth(layers=ROUTED, router_width=8))
    model.tokenizer = tokens
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    batches = text_batches(read_text(text, tokens, 400), 64)
    model.config.curve = calibrate(model, batches, [2.0, 2.5, 3.0], progress=False)
    laval.set_depth(model, model.config.curve[1]["depth"])
    save_plugin(model, folder, dtype=torch.bfloat16, card="---\nlibrary_name: laval\n---\nA card of its own.\n")


@pytest.fixture(autouse=True)
def peaks(monkeypatch):
    """A machine whose rates are known: nothing is measured, nothing kept in a cache."""
    known = Peaks("cpu", "float32", read_gb_s=10.0, copy_gb_s=10.0, gflop_s=50.0)
    for module in ("model", "speed"):
        monkeypatch.setattr(f"laval.measure.{module}.machine_peaks", lambda *arguments: known)


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Place:
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("place")
    found = Place(root / "tiny-llama", root / "plugin", root / "prose.txt", root / "chat.jsonl")
    found.text.write_text(PROSE, encoding="utf-8")
    turns = [{"role": "user", "content": "When does it cross?"}, {"role": "assistant", "content": "At noon."}]
    found.chat.write_text((json.dumps({"messages": turns}) + "\n") * 6, encoding="utf-8")
    made = tokenizer()
    tiny_model("llama", vocab_size=len(made), max_position_embeddings=CONTEXT).save_pretrained(found.base)
    made.save_pretrained(found.base)
    make_plugin(found.base, found.plugin, found.text)
    return found
