"""Which draft goes next, and how far: whatever promises most tokens per second."""

from __future__ import annotations

from dataclasses import dataclass

from laval.speculate.costs import Costs
from laval.speculate.rates import Rates

ROWS = (2, 4, 8, 16)
"""Rows of a pass that verifies: few sizes, so that the cost of each is soon known."""
DRAWN = (1, 2, 3, 4, 6, 8)
"""Tokens that a draft by the model itself may propose."""
WORTH = 1.03
"""A plan must promise this much more than no draft at all: estimates are no better."""
HOPE = 0.85
"""Acceptance that a draft by the model itself is credited with before it has been tried."""


@dataclass(frozen=True)
class Plan:
    """draft: a name, or "none". tokens: how many it is to propose. gain: promised speed, as a multiple of no draft."""

    draft: str = "none"
    tokens: int = 0
    gain: float = 1.0


class Controller:
    """Costs and acceptances of one model on one machine, kept from text to text, and the choice they lead to."""

    def __init__(self):
        self.costs = Costs()
        self.free = Rates()
        self.drawn = Rates(HOPE)

    def plan(self, likely: list[float], drafts: dict[str, float], left: int, must: bool = False) -> Plan:
        """likely: chances of the free proposal's tokens. drafts: the others' first guess of their cost.

        left: tokens still wanted. must: a draft is to be used even where none would be faster.
        """
        if left < 2 or not self.costs.known:
            return Plan()
        plans = [*self.free_plans(likely, left), *self.drawn_plans(drafts, left)]
        best = max(plans, key=lambda plan: plan.gain, default=Plan())
        return best if must or best.gain >= WORTH else Plan()

    def free_plans(self, likely: list[float], left: int):
        most = min(len(likely), left - 1)
        for count in sorted({min(rows - 1, most) for rows in ROWS} - {0}):
            yield Plan("lookup", count, self.gain(likely[:count], 0.0))

    def drawn_plans(self, drafts: dict[str, float], left: int):
        for name, share in drafts.items():
            each = self.costs.of_draft(name, share)
            for count in (n for n in DRAWN if n < left):
                likely = [self.drawn.rate(f"{name} {min(i, 4)}") for i in range(1, count + 1)]
                yield Plan(name, count, self.gain(likely, count * each))

    def gain(self, likely: list[float], drafting: float) -> float:
        """Tokens per second with a proposal over those without."""
        seconds = drafting + self.costs.of_pass(len(likely) + 1)
        return expected_tokens(likely) * self.costs.of_pass(1) / seconds

    def learn(self, sources: tuple[str, ...], accepted: int) -> None:
        """What became of tokens that a draft by the model itself proposed; those after a wrong one say nothing."""
        for place, source in enumerate(sources[: accepted + 1]):
            self.drawn.note(source, place < accepted)


def expected_tokens(likely: list[float]) -> float:
    """Tokens that a pass yields: its own one, and each proposed one if all before it are right."""
    total = whole = 1.0
    for chance in likely:
        whole *= chance
        total += whole
    return total
