"""Shortened models for the harness: every rule x reduce x upsample, one level or two, published or modern layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
import torch
from torch import nn

from laval.models import ShortenedConfig, ShortenedForCausalLM
from laval.shorten import Rule
from laval.shorten.predictor import Predictor
from laval.shorten.uncertainty import UncertaintyRule
from tests.invariants.harness import LENGTH, prompt
from tests.tiny import exact, tiny_config

RULES = {
    "fixed": {"name": "fixed"},
    "tokens": {"name": "tokens", "tokens": list(range(3, 128, 3))},
    "unigram": {"name": "unigram", "hidden": 24},
    "entropy": {"name": "entropy", "hidden": 24},
    "gumbel": {"name": "gumbel", "hidden": 24},
    "cosine": {"name": "cosine"},
    "uncertainty": {"name": "uncertainty", "vocabulary": 128, "layers": 1, "width": 16, "heads": 2, "rule": "rise"},
}
REDUCE = ("mean", "last", "max", "linear", "attention", "attention_linear")
UPSAMPLE = ("repeat", "linear", "transposed", "smooth", "attention", "attention_repeat", "attention_linear")
KINDS = ("first", "last", "llama", "qwen3", "gemma3_text")
STARTS = ("null", "zeros", "forced")
PLANS = {1: "1@1 2@3 1@1", 2: "1@1 1@2 1@4 1@2 1@1"}
DEPTHS = {1: 4, 2: 5}
PAPER = {"width": 32, "feed_forward": 48, "heads": 4}


@dataclass(frozen=True)
class Shortened:
    """A factory: one kind of layers with one way to shorten, at every level the same as far as it can be."""

    kind: str
    rule: str
    reduce: str
    upsample: str
    start: str
    levels: int
    seed: int = 0

    def __call__(self, dtype: torch.dtype = torch.float64) -> ShortenedForCausalLM:
        return build(self, dtype)

    def __str__(self) -> str:
        return f"{self.kind}-{self.rule}-{self.reduce}-{self.upsample}-{self.start}-{self.levels}"

    @property
    def level(self) -> dict:
        """Settings of the outermost level."""
        distance = "tokens" if self.rule == "fixed" and self.start == "zeros" else "rows"
        skip = "linear" if self.rule == "cosine" else "identity"
        ways = {"reduce": self.reduce, "upsample": self.upsample, "start": self.start}
        return {"rule": RULES[self.rule], "distance": distance, "skip": skip, **ways}

    @property
    def inner(self) -> dict:
        """Settings of the level inside: a rule that learns from labels of tokens cannot stand there."""
        rule = "gumbel" if self.rule in ("unigram", "entropy", "tokens", "uncertainty") else self.rule
        return {**self.level, "rule": RULES[rule]}

    def config(self) -> ShortenedConfig:
        levels = [self.level, self.inner][: self.levels]
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        if self.kind in ("first", "last"):
            return ShortenedConfig(PLANS[self.levels], levels, {**PAPER, "norm": self.kind}, vocab_size=128, **special)
        depth = DEPTHS[self.levels]
        types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
        mixed = {"layer_types": types[:depth]} if self.kind == "gemma3_text" else {}
        text = tiny_config(self.kind, num_hidden_layers=depth, **mixed)
        return ShortenedConfig(PLANS[self.levels], levels, text_config=text, attn_implementation="sdpa")


@cache
def build(subject: Shortened, dtype: torch.dtype) -> ShortenedForCausalLM:
    """The tiny model, drawn so that everything matters, with learned rules that really decide."""
    torch.manual_seed(subject.seed)
    model = ShortenedForCausalLM(subject.config())
    for name, parameter in model.named_parameters():
        norm = "norm" in name and name.endswith("weight")
        # or one token wins always
        spread = 0.05 if name.endswith("bias") else 1.0 if name == "kind.embedding.weight" else 0.2
        nn.init.normal_(parameter, mean=1.0 if norm else 0.0, std=spread)
    model = model.to(dtype).eval()
    model = exact(model) if dtype == torch.float64 else model
    for number, rule in enumerate(model.rules()):
        if isinstance(rule, (Predictor, UncertaintyRule)):
            balance(model, number, rule)
    assert_mixed(model, subject)
    return model


@torch.no_grad()
def balance(model, number: int, rule: Rule) -> None:
    """Move the threshold into the widest gap among the middle of what it cuts, so that rounding decides nothing."""
    commits = model(prompt()).commits[number]
    measured = rule.cuts(commits)[commits.real].sort().values
    middle = measured[len(measured) // 2 : len(measured) * 4 // 5]
    widest = middle.diff().argmax()
    rule.threshold = float((middle[widest] + middle[widest + 1]) / 2)


@torch.no_grad()
def assert_mixed(model, subject: Shortened) -> None:
    """A model that commits always, or never, proves little; nor does one that rounding decides."""
    for rule, commits in zip(model.rules(), model(prompt()).commits, strict=True):
        assert 0.1 < commits.bits[commits.real].double().mean() < 0.9, subject
        margin = rule.margin(commits)
        if margin is not None and model.dtype == torch.float64:
            assert margin[commits.real].min() > 1e-6


def everything() -> list[Shortened]:
    """The whole matrix; layers and starts change from one to the next, so that all of them meet."""
    ways = product(RULES, REDUCE, UPSAMPLE, (1, 2))
    return [
        Shortened(KINDS[number % len(KINDS)], rule, reduce, upsample, STARTS[number // 2 % len(STARTS)], levels)
        for number, (rule, reduce, upsample, levels) in enumerate(ways)
    ]


QUICK = [
    Shortened("last", "tokens", "mean", "repeat", "null", 1),
    Shortened("last", "gumbel", "mean", "repeat", "null", 2),
    Shortened("first", "fixed", "attention", "attention", "zeros", 1),
    Shortened("first", "fixed", "attention_linear", "attention_linear", "zeros", 2, seed=1),
    Shortened("first", "unigram", "max", "transposed", "null", 1),
    Shortened("llama", "cosine", "last", "smooth", "forced", 1),
    Shortened("llama", "cosine", "last", "smooth", "forced", 2),
    Shortened("llama", "fixed", "linear", "linear", "zeros", 2),
    Shortened("qwen3", "entropy", "attention", "attention_repeat", "null", 1),
    Shortened("gemma3_text", "tokens", "linear", "attention", "zeros", 2, seed=1),
    Shortened("last", "uncertainty", "mean", "linear", "null", 1),
]


def parameters() -> list:
    """QUICK, and the rest of the matrix marked slow."""
    rest = [subject for subject in everything() if subject not in QUICK]
    return [
        *(pytest.param(subject, id=str(subject)) for subject in QUICK),
        *(pytest.param(subject, id=str(subject), marks=pytest.mark.slow) for subject in rest),
    ]


def given_bits(seed: int = 3) -> torch.Tensor:
    """Random commits for the harness's prompt, [B, T]."""
    return torch.rand(prompt().shape[0], LENGTH, generator=torch.Generator().manual_seed(seed)) < 0.4
