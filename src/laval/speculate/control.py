"""Which draft goes next, and how far: whatever promises most tokens per second, as long as the ledger is open."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laval.speculate.costs import Costs
from laval.speculate.ledger import Ledger
from laval.speculate.proposal import chance_of, source_of
from laval.speculate.rates import Rates, Trust, Yield

ROWS = (2, 4, 8, 16)
"""Rows of a pass that verifies: few sizes, so that the cost of each is soon known."""
DRAWN = (1, 2, 3, 4, 6, 8)
"""Tokens that a draft by the model itself may propose."""
WORTH = 1.03
"""A plan must promise this much more than no draft at all: estimates are no better."""
HOPE = 0.85
"""Acceptance that a draft by the model itself is credited with before it has been tried."""
HEAD, HEAD_HOPE, HEAD_MOST = "head", 1.15, 7
"""The trained draft, the gain it is credited with before it has been tried, and how many tokens it may propose."""


@dataclass(frozen=True)
class Plan:
    """draft: a name, or "none". tokens: how many it is to propose. gain: promised speed, as a multiple of no draft.

    expected: the tokens it is to yield, the dense model's own included.
    """

    draft: str = "none"
    tokens: int = 0
    gain: float = 1.0
    expected: float = 1.0


class Controller:
    """Costs and acceptances of one model on one machine, kept from text to text, and the choice they lead to."""

    def __init__(self):
        self.costs = Costs()
        self.ledger = Ledger()
        self.free = Rates()
        self.drawn = Rates(HOPE)
        self.trust = Trust()
        self.head = Yield(HEAD_HOPE)

    def start(self) -> None:
        """A new text: what failed in others may succeed here, so its record weighs less."""
        self.costs.start()
        self.drawn.weaken()
        self.trust.weaken()
        self.head.weaken()

    @property
    def open(self) -> bool:
        """Whether a draft may be considered at all."""
        return self.costs.known and self.ledger.open and not self.costs.stale

    def plan(self, likely: list[float], drafts: dict[str, float], left: int, must: bool = False) -> Plan:
        """likely: chances of the free proposal's tokens. drafts: the others' first guess of their cost.

        left: tokens still wanted. must: a draft is to be used even where none would be faster.
        """
        if left < 2 or not (self.open or must):
            return Plan()
        plans = [*self.free_plans(likely, left), *self.drawn_plans(drafts, left)]
        best = max(plans, key=lambda plan: plan.gain, default=Plan())
        return best if must or best.gain >= WORTH else Plan()

    def free_plans(self, likely: list[float], left: int):
        most = min(len(likely), left - 1)
        for count in sorted({min(rows - 1, most) for rows in ROWS} - {0}):
            yield self.promised("lookup", likely[:count], 0.0)

    def drawn_plans(self, drafts: dict[str, float], left: int):
        for name, share in drafts.items():
            if name == HEAD:
                yield Plan(HEAD, min(HEAD_MOST, left - 1), self.head.gain)
                continue
            each = self.costs.of_draft(name, share)
            likely = [self.drawn.rate(source_of(name, place)) for place in range(1, min(DRAWN[-1], left - 1) + 1)]
            for count in (n for n in DRAWN if n < left):
                yield self.promised(name, likely[:count], count * each)

    def promised(self, draft: str, likely: list[float], drafting: float) -> Plan:
        """Tokens per second with a proposal, over those without."""
        expected = 1 + self.trust.of(draft) * (expected_tokens(likely) - 1)
        gain = expected / (drafting + self.costs.of_pass(len(likely) + 1))
        return Plan(draft, len(likely), gain, expected_tokens(likely))

    def goes_on(self, sources: list[str], share: float, must: bool = False) -> bool:
        """Whether a trained draft should propose the last of these tokens too: is it worth a row and a look ahead?"""
        if must and len(sources) == 1:
            return True
        chance = math.prod(self.drawn.rate(source, chance_of(source)) for source in sources)
        row = self.costs.of_pass(len(sources) + 1) - self.costs.of_pass(len(sources))
        return chance >= row + self.costs.of_draft(HEAD, share)

    def learn(self, sources: tuple[str, ...], accepted: int) -> None:
        """What became of tokens that a draft by the model itself proposed; those after a wrong one say nothing."""
        for place, source in enumerate(sources[: accepted + 1]):
            self.drawn.note(source, place < accepted)

    def settle(self, plan: Plan, tokens: int, seconds: float, plain: bool) -> None:
        """A round is over. plain: it did what plain decoding does."""
        passes = seconds / self.costs.plain if self.costs.known else None
        if plan.draft == HEAD and passes is not None:
            self.head.note(tokens, passes)
        elif plan.draft not in ("none", HEAD):
            self.trust.note(plan.draft, plan.expected - 1, tokens - 1)
        if passes is not None:
            self.ledger.note(tokens, tokens if plain else passes)


def expected_tokens(likely: list[float]) -> float:
    """Tokens that a pass yields: its own one, and each proposed one if all before it are right."""
    total = whole = 1.0
    for chance in likely:
        whole *= chance
        total += whole
    return total
