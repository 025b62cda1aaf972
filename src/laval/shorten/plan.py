"""How many layers run at which shortening, as Hourglass writes it: "4@1 8@3 4@1"."""

from __future__ import annotations

import re
from dataclasses import dataclass

TERM = re.compile(r"(\d+)@(\d+(?:\.\d+)?)")
EXAMPLE = 'expected layers@factor in a palindrome, such as "4@1 8@3 4@1" or "2@1 1@2 4@4 1@2 2@1"'


@dataclass(frozen=True)
class Plan:
    """layers and factors from level 0 to the innermost: 4@1 8@3 4@1 is layers (4, 8), factors (1, 3).

    Factors are total, in tokens per row; those that are no whole numbers say what is wanted of a learned rule.
    """

    layers: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def levels(self) -> int:
        """How many times it shortens."""
        return len(self.layers) - 1

    @property
    def depth(self) -> int:
        """Layers in all, on the way in, inside, and out."""
        return 2 * sum(self.layers) - self.layers[-1]

    @property
    def steps(self) -> tuple[float, ...]:
        """By how much each level shortens the one around it."""
        return tuple(inner / outer for outer, inner in zip(self.factors, self.factors[1:], strict=False))

    def __str__(self) -> str:
        way_in = [f"{n}@{f:g}" for n, f in zip(self.layers, self.factors, strict=True)]
        return " ".join(way_in + way_in[-2::-1])


def read_plan(text: str) -> Plan:
    """A plan from its text. ValueError that says what is wrong with it: terms, palindrome, factors."""
    terms = [TERM.fullmatch(term) for term in str(text).split()]
    if not terms or None in terms:
        raise ValueError(f"plan is {text!r}; {EXAMPLE}")
    pairs = [(int(term[1]), float(term[2])) for term in terms]
    if pairs != pairs[::-1]:
        raise ValueError(f"plan {text!r} is no palindrome: it reads otherwise from its end; {EXAMPLE}")
    if len(pairs) % 2 == 0:
        raise ValueError(f"plan {text!r} has no middle: its {len(pairs)} terms come in pairs; {EXAMPLE}")
    half = pairs[: len(pairs) // 2 + 1]
    check_factors(text, [factor for _, factor in half])
    if half[-1][0] == 0:
        raise ValueError(f"plan {text!r} has no layer in the middle; expected at least 1")
    return Plan(tuple(n for n, _ in half), tuple(int(f) if f == int(f) else f for _, f in half))


def check_factors(text: str, factors: list[float]) -> None:
    if factors[0] != 1:
        raise ValueError(f"plan {text!r} starts at factor {factors[0]:g}; expected 1: level 0 has every token")
    for outer, inner in zip(factors, factors[1:], strict=False):
        if inner <= outer:
            raise ValueError(f"plan {text!r} goes from factor {outer:g} to {inner:g}; expected a larger one inside")
        if inner == int(inner) and outer == int(outer) and inner % outer:
            raise ValueError(
                f"plan {text!r}: {outer:g} does not divide {inner:g}; expected factors that are multiples of the one "
                f"outside, such as {outer:g} and {2 * outer:g}"
            )


def check_depth(plan: Plan, depth: int) -> None:
    """ValueError unless the plan has as many layers as the base model."""
    if plan.depth != depth:
        raise ValueError(
            f"plan {str(plan)!r} has {plan.depth} layers and the base model {depth}; expected numbers that add up to "
            f"{depth}, such as {str(example(plan, depth))!r}"
        )


def example(plan: Plan, depth: int) -> Plan:
    """The same outer layers around a middle that makes up the depth, or a third for the outside."""
    inside = depth - 2 * sum(plan.layers[:-1])
    if inside > 0:
        return Plan((*plan.layers[:-1], inside), plan.factors)
    outer = max(depth // 6, 1) if depth > 2 else 0
    return Plan((outer, depth - 2 * outer), (1, plan.factors[-1] if plan.levels else 2))
