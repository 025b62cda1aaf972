"""Tiny models, texts and recipes for the training tests."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from laval.config import load_config
from laval.models import AdaptiveForCausalLM, attach
from laval.skip import FlexiDepth
from laval.train.recipe import Recipe, Stage
from tests.tiny import tiny_model

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
LAYERS = [1, 2, 3]


def character_tokenizer(max_length: int = 64) -> PreTrainedTokenizerFast:
    """A token for each ASCII character; ids below 128."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **{chr(code): code for code in range(32, 127)}, "\n": 10}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, chat_template=TEMPLATE, **special
    )


def write_text(path: Path, characters: int = 3000, seed: int = 0) -> Path:
    """Words from a small vocabulary: something a model can learn."""
    words = ["laval", "nozzle", "skips", "layers", "for", "easy", "tokens", "and", "runs", "them", "all"]
    draw = random.Random(seed)
    path.write_text(" ".join(draw.choice(words) for _ in range(characters // 5))[:characters])
    return path


def write_chat(path: Path, count: int = 60) -> Path:
    turns = [
        [{"role": "user", "content": f"what is {n}?"}, {"role": "assistant", "content": str(n)}] for n in range(count)
    ]
    path.write_text("\n".join(json.dumps({"messages": chat}) for chat in turns))
    return path


def routed(dtype=torch.float32, perturb: float = 0.3, seed: int = 1, base=None, **fields) -> AdaptiveForCausalLM:
    """A tiny adaptive model with its tokenizer, whose routers and adapters say something."""
    method = {"layers": LAYERS, "router_width": 8, "adapter_width": 16, **fields}
    model = attach(base or tiny_model("llama", dtype), load_config(FlexiDepth, method))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(perturb * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    model.tokenizer = character_tokenizer()
    return model


def fresh(seed: int = 0, **fields) -> AdaptiveForCausalLM:
    """As a run starts: new routers and adapters, the same for the same seed."""
    base = tiny_model("llama")
    torch.manual_seed(seed)
    return routed(base=base, perturb=0.0, **fields)


def batch(rows: int = 4, length: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 128, (rows, length), generator=torch.Generator().manual_seed(seed))


ALIGN = {"objective": "align", "tokens": 1024, "batch": 4, "lr": 3e-3, "depth": [3]}
ANNEAL = {"objective": "anneal", "tokens": 768, "batch": 4, "lr": 1e-3, "depth": [2.5, 3.5], "lm": 1.0}


def stage(base: dict = ANNEAL, **fields) -> Stage:
    return load_config(Stage, {**base, **fields})


def recipe(folder: Path, **fields) -> Recipe:
    """Two short stages over one text file, written to folder / "out"."""
    folder.mkdir(exist_ok=True)
    text = write_text(folder / "text.txt")
    defaults = {
        "model": "tiny",
        "method": {"name": "flexidepth", "layers": LAYERS, "router_width": 8, "adapter_width": 16},
        "data": {"length": 32, "sources": [{"path": str(text)}]},
        "stages": [ALIGN, ANNEAL],
        "output": str(folder / "out"),
        "save_steps": 2,
        "log_steps": 1,
    }
    return load_config(Recipe, {**defaults, **fields})


def weights(model: AdaptiveForCausalLM) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in model.policy.parameters()])


def gradients(model: AdaptiveForCausalLM) -> torch.Tensor:
    return torch.cat(
        [parameter.grad.flatten() for parameter in model.policy.parameters() if parameter.grad is not None]
    )
