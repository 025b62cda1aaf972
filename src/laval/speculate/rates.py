"""How often guesses of each kind are right, lately, and how far such estimates hold."""

from __future__ import annotations

FADE = 0.98  # of a kind's counts with each of its guesses: the last fifty decide
DOUBT = 3.0  # guesses' worth of weight that the first assumption has
WEAKER = 0.7  # of what was counted, at the start of another text


class Rates:
    """Running acceptance by kind of guess.

    first: what a kind is assumed to reach before it has been seen; low, for guesses are counted without being tried.
    """

    def __init__(self, first: float = 0.2):
        self.first = first
        self.right: dict[str, float] = {}
        self.made: dict[str, float] = {}

    def note(self, kind: str, right: bool) -> None:
        self.right[kind] = FADE * self.right.get(kind, 0.0) + right
        self.made[kind] = FADE * self.made.get(kind, 0.0) + 1

    def rate(self, kind: str, first: float | None = None) -> float:
        """Between 0 and 1; first: what this kind is assumed to reach."""
        first = self.first if first is None else first
        return (self.right.get(kind, 0.0) + DOUBT * first) / (self.made.get(kind, 0.0) + DOUBT)

    def weaken(self) -> None:
        """Let the first assumption count for more again."""
        for counts in (self.right, self.made):
            for kind in counts:
                counts[kind] *= WEAKER


class Trust:
    """Tokens that stood over those that were promised, by draft, at most 1: estimates picked for being high are."""

    FADE = 0.95

    def __init__(self):
        self.promised: dict[str, float] = {}
        self.stood: dict[str, float] = {}

    def note(self, draft: str, promised: float, stood: float) -> None:
        self.promised[draft] = self.FADE * self.promised.get(draft, 0.0) + promised
        self.stood[draft] = self.FADE * self.stood.get(draft, 0.0) + stood

    def of(self, draft: str) -> float:
        """Between 0 and 1."""
        return min(1.0, (self.stood.get(draft, 0.0) + DOUBT) / (self.promised.get(draft, 0.0) + DOUBT))

    def weaken(self) -> None:
        for counts in (self.promised, self.stood):
            for draft in counts:
                counts[draft] *= WEAKER


class Yield:
    """Tokens and passes of the rounds of one draft that decides by itself how far it goes, of late."""

    FADE, WEIGHT = 0.95, 5.0

    def __init__(self, hope: float):
        self.hope, self.tokens, self.passes = hope, 0.0, 0.0

    def note(self, tokens: int, passes: float) -> None:
        self.tokens, self.passes = self.FADE * self.tokens + tokens, self.FADE * self.passes + passes

    @property
    def gain(self) -> float:
        """Tokens per pass over one row; before any round, what is hoped for."""
        return (self.tokens + self.WEIGHT * self.hope) / (self.passes + self.WEIGHT)

    def weaken(self) -> None:
        self.tokens, self.passes = WEAKER * self.tokens, WEAKER * self.passes
