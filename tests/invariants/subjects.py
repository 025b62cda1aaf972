"""The models that the harness runs over: every family, under every method, with routers that really decide."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import nn

from laval.models import attach, using
from laval.skip import DropLayers, FlexiDepth, RandomRoutes
from tests.invariants.harness import prompt
from tests.tiny import FAMILIES, implementations, tiny_model

ROUTED = (1, 2, 3)  # a full and a sliding layer among them, where a family has both
WIDTHS = {"layers": ROUTED, "router_width": 8, "adapter_width": 12}
METHODS = {
    "dense": FlexiDepth(**WIDTHS),  # the plug-in is there but off
    "hard_mask": FlexiDepth(**WIDTHS),
    "released": FlexiDepth(**WIDTHS, gate="released", router="tanh_norm"),
    "drop": DropLayers((2,)),
    "random": RandomRoutes(ROUTED, seed=3),
    "no_kv": FlexiDepth(**WIDTHS, keep_kv=False),
    "ablated": FlexiDepth(**WIDTHS, router="linear", adapter=False),
}
RATES = (0.2, 0.8)
MARGIN = 1e-3


@dataclass(frozen=True)
class Subject:
    """A factory: one family under one method, on an attention implementation."""

    family: str
    method: str
    implementation: str

    def __call__(self, dtype: torch.dtype = torch.float64):
        model = build(self.family, self.method, self.implementation, dtype)
        model.runtime = "dense" if self.method == "dense" else "auto"
        return model

    def __str__(self) -> str:
        return f"{self.family}-{self.method}-{self.implementation}"


@cache
def build(family: str, method: str, implementation: str, dtype: torch.dtype):
    """The tiny model of a family with a method attached, its routers and adapters drawn at random and balanced."""
    base = tiny_model(family, dtype, attn_implementation=implementation)
    model = attach(base, METHODS[method])
    if list(model.policy.parameters()):
        randomise(model)
    return model


def randomise(model, seed: int = 0) -> None:
    """Routers and adapters from a normal distribution, then each router's bias where its scores part most clearly."""
    torch.manual_seed(seed)
    for parameter in model.policy.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 1.0)
    for index in range(len(model.policy.layers)):
        balance(model, index)
    assert_routes_are_mixed(model)


@torch.no_grad()
def balance(model, index: int) -> None:
    """Move the bias of one router into the widest gap among the middle scores of a prompt."""
    scores = routes_of(model)[index].gate.logit().flatten().sort().values
    middle = scores[len(scores) * 3 // 10 : len(scores) * 7 // 10]
    widest = middle.diff().argmax()
    router = model.policy.routers[str(model.policy.layers[index])]
    router.head.bias -= (middle[widest] + middle[widest + 1]) / 2


@torch.no_grad()
def routes_of(model, ids=None, mask=None):
    with using(model, "masked"):
        return model(prompt() if ids is None else ids, attention_mask=mask).routes


def assert_routes_are_mixed(model) -> None:
    """A test of a model that skips nothing, or everything, proves nothing; nor does one that rounding decides."""
    for route in routes_of(model):
        assert RATES[0] <= route.run.double().mean() <= RATES[1]
        assert route.gate.std() > 0.02
        if model.dtype == torch.float64:
            assert (route.gate - 0.5).abs().min() > MARGIN


def subjects(methods=tuple(METHODS)) -> list[Subject]:
    """Every family x method x attention implementation, but what is refused."""
    found = (
        Subject(family, method, implementation)
        for family in FAMILIES
        for method in methods
        for implementation in implementations(family)
    )
    return [subject for subject in found if (subject.family, subject.method) != ("gemma2", "no_kv")]


def parameters(methods=tuple(METHODS), quick=()) -> list:
    """Parameters for all subjects; slow, but the (family, method) pairs of `quick` on one implementation."""

    def marks(subject: Subject) -> list:
        preferred = implementations(subject.family)[-1]
        fast = (subject.family, subject.method) in quick and subject.implementation == preferred
        return [] if fast else [pytest.mark.slow]

    return [pytest.param(subject, id=str(subject), marks=marks(subject)) for subject in subjects(methods)]


EVERY_FAMILY = {(family, "hard_mask") for family in FAMILIES}
EVERY_METHOD = {  # on a family that asks something of it: windows, two rotary tables, a fused projection
    ("llama", "dense"),
    ("qwen3", "released"),
    ("gemma2", "released"),
    ("mistral", "drop"),
    ("phi3", "random"),
    ("gemma3_text", "no_kv"),
    ("llama", "no_kv"),
    ("qwen2", "ablated"),
}
