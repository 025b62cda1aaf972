"""How often guesses of each kind are right, lately."""

from __future__ import annotations

FADE = 0.98  # of a kind's counts with each of its guesses: the last fifty decide
DOUBT = 3.0  # guesses' worth of weight that the first assumption has


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

    def rate(self, kind: str) -> float:
        """Between 0 and 1."""
        return (self.right.get(kind, 0.0) + DOUBT * self.first) / (self.made.get(kind, 0.0) + DOUBT)
