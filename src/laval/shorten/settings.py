"""What a shortened model is made of, level by level, as frozen and strictly read settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import ceil
from typing import Any, Literal

from torch import nn

from laval.config import load_config, to_mapping
from laval.shorten.commit import Fixed, Given, Tokens
from laval.shorten.level import Core, Level
from laval.shorten.pattern import Pattern
from laval.shorten.plan import Plan
from laval.shorten.predictor import Entropy, Gumbel, Supervised
from laval.shorten.reduce import build_reduce
from laval.shorten.router import Cosine
from laval.shorten.start import build_start
from laval.shorten.uncertainty import Uncertainty
from laval.shorten.upsample import build_upsample

RULES = {
    "fixed": Fixed,
    "tokens": Tokens,
    "pattern": Pattern,
    "given": Given,
    "unigram": Supervised,
    "entropy": Entropy,
    "gumbel": Gumbel,
    "cosine": Cosine,
    "uncertainty": Uncertainty,
}
"""From the name in a config to the rule's settings."""


@dataclass(frozen=True)
class Shortening:
    """One shortening: which rule commits, and how rows are reduced, started, upsampled and skipped past.

    distance: rows inside count as one apart ("rows"), or as far as the tokens they stand for ("tokens", fixed rules).
    places: how many tokens linear and transposed maps tell apart; 0 takes the plan's factor, rounded up.
    """

    rule: Any = field(default_factory=Fixed)
    reduce: Literal["mean", "last", "max", "linear", "attention", "attention_linear"] = "mean"
    upsample: Literal[
        "repeat", "linear", "transposed", "smooth", "attention", "attention_repeat", "attention_linear"
    ] = "repeat"
    start: Literal["zeros", "null", "forced"] = "null"
    skip: Literal["identity", "linear"] = "identity"
    distance: Literal["rows", "tokens"] = "rows"
    places: int = 0

    def __post_init__(self):
        if self.distance == "tokens" and not isinstance(self.rule, Fixed):
            raise ValueError('distance is "tokens"; only a fixed rule knows how many: use "rows"')
        learned = [part for part in (self.reduce, self.upsample) if "linear" in part or part == "transposed"]
        if getattr(self.rule, "drop", ()) and learned:
            raise ValueError(f"rule.drop draws the factor at each step, which and {learned[0]!r} has maps for one")


def read_shortening(mapping: Mapping | Shortening) -> Shortening:
    """Settings of one level from {"rule": {"name": ..., ...}, "reduce": ..., ...}. ValueError for what is unknown."""
    if isinstance(mapping, Shortening):
        return mapping
    rule = mapping.get("rule", {"name": "fixed"})
    rule = rule if isinstance(rule, Mapping) else {"name": rule}
    return load_config(Shortening, {**mapping, "rule": read_rule(rule)})


def read_rule(mapping: Mapping):
    fields = dict(mapping)
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in RULES:
        near = get_close_matches(str(name), RULES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"rule.name is {name!r}; expected one of {', '.join(RULES)}{hint}")
    return load_config(RULES[name], fields)


def write_shortening(shortening: Shortening) -> dict:
    """The mapping that `read_shortening` reads back."""
    name = next(name for name, rule in RULES.items() if type(shortening.rule) is rule)
    return {**to_mapping(shortening), "rule": {"name": name, **to_mapping(shortening.rule)}}


def build_stacks(plan: Plan, shortenings: list[Shortening], kind, level: int = 0) -> Level | Core:
    """The hierarchy of a plan, from `level` inwards, of a kind's parts; layers are numbered in the order they run."""
    before = sum(plan.layers[:level])
    way_in = range(before, before + plan.layers[level])
    if level == plan.levels:
        return Core(kind.stack(way_in, last=level == 0))
    settings, step = shortenings[level], plan.steps[level]
    rule = settings.rule.build(kind.width, step)
    places = settings.places or getattr(rule, "factor", 0) * isinstance(settings.rule, Fixed) or ceil(step)
    way_out = range(plan.depth - way_in.stop, plan.depth - way_in.start)
    return Level(
        outer=kind.stack(way_in, last=False),
        commit=rule,
        start=build_start(settings.start, kind.width),
        reduce=build_reduce(settings.reduce, kind, places),
        reduced_norm=kind.reduced_norm(),
        inner=build_stacks(plan, shortenings, kind, level + 1),
        upsample=build_upsample(settings.upsample, kind, places),
        upsampled_norm=kind.upsampled_norm(),
        skip=zero_linear(kind.width) if settings.skip == "linear" else nn.Identity(),
        outward=kind.stack(way_out, last=level == 0),
        in_tokens=settings.distance == "tokens",
    )


def zero_linear(width: int) -> nn.Linear:
    """H-Net's skip: a map that starts at zero."""
    linear = nn.Linear(width, width)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
