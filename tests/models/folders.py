"""Tiny models, tokenizers and plug-ins for the tests of saving and loading, and how to damage them."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

from laval.models import AdaptiveForCausalLM, attach
from laval.skip import FlexiDepth
from tests.tiny import tiny_model

NAME = "Laval/Tiny-Llama"


def base(name=NAME, **overrides):
    model = tiny_model("llama", **overrides)
    model.config._name_or_path = name
    return model


def edit(folder, change):
    record = json.loads((folder / "laval.json").read_text())
    change(record)
    (folder / "laval.json").write_text(json.dumps(record))


def edit_weights(folder, change):
    edit_tensors(folder / "plugin.safetensors", change)


def edit_tensors(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def routed(base=None, **fields) -> AdaptiveForCausalLM:
    """A tiny model whose random routers send some tokens each way and whose adapters do something."""
    base = tiny_model("llama") if base is None else base
    model = attach(base, FlexiDepth(**{"router_width": 4, "adapter_width": 6, "start": 0.0, **fields}))
    torch.manual_seed(7)
    for parameter in model.policy.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", "?", "a", "de", "laval", "nozzle"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="?"
    )


def prompt() -> torch.Tensor:
    return torch.randint(3, 128, (2, 12), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits_of(model) -> torch.Tensor:
    return model(input_ids=prompt()).logits


def assert_came_back(loaded, model) -> None:
    """Weights bit for bit; logits up to rounding, as the last bit of a product depends on its operands' addresses."""
    ours, theirs = (dict([*each.named_parameters(), *each.named_buffers()]) for each in (loaded, model))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    torch.testing.assert_close(logits_of(loaded), logits_of(model))
