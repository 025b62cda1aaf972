"""What passes and drafted tokens really take, learned while generating."""

from __future__ import annotations

import statistics
from collections import deque

KEPT = 15
SURE = 3
"""Measurements from which a median stands alone; before, the guess counts as one more of them."""
STEP, SLOPE = 0.3, 0.1
"""First guess, in passes over one row: what a second row adds, and each further one. Measured once tried."""


class Costs:
    """Median seconds of recent passes by their rows, and of drafted tokens by the draft's name.

    The first of each kind is left out: it also makes room, and plans what later ones only do.
    """

    def __init__(self):
        self.passes: dict[int, deque] = {}
        self.drafts: dict[str, deque] = {}
        self.begun: set[int | str] = set()

    def note_pass(self, rows: int, seconds: float) -> None:
        self.note(self.passes, rows, seconds)

    def note_draft(self, name: str, seconds: float) -> None:
        self.note(self.drafts, name, seconds)

    def note(self, kept: dict, kind: int | str, seconds: float) -> None:
        if kind in self.begun:
            kept.setdefault(kind, deque(maxlen=KEPT)).append(seconds)
        self.begun.add(kind)

    @property
    def known(self) -> bool:
        """Whether a pass over one row has been timed: everything else can be guessed from it."""
        return 1 in self.passes

    def of_pass(self, rows: int) -> float:
        """Seconds of a pass over `rows` tokens."""
        if rows == 1:
            return statistics.median(self.passes[1])
        return settled(self.passes.get(rows, ()), self.guessed(rows))

    def guessed(self, rows: int) -> float:
        """In a straight line between the nearest passes that were timed, or on with the usual slope."""
        timed = sorted(n for n in self.passes if n != rows)
        low = max(n for n in timed if n < rows)
        high = next((n for n in timed if n > rows), None)
        left = statistics.median(self.passes[low])
        if high is None:
            more = (rows - low) * SLOPE + (STEP - SLOPE) * (low == 1)
            return left + more * statistics.median(self.passes[1])
        right = statistics.median(self.passes[high])
        return left + (right - left) * (rows - low) / (high - low)

    def of_draft(self, name: str, share: float) -> float:
        """Seconds of one drafted token; `share` of a pass over one row is the first guess."""
        return settled(self.drafts.get(name, ()), share * self.of_pass(1))


def settled(measured, guess: float) -> float:
    return statistics.median(measured if len(measured) >= SURE else [*measured, guess])
