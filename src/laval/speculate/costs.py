"""What passes and drafted tokens really take, learned while generating, in passes over one row of the same period.

Machines get slower and faster by the minute; ratios of neighbours in time hold.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

KEPT, RECENT = 15, 7
SURE = 3
"""Measurements from which a median stands alone; before, the guess counts as one more of them."""
STEP, SLOPE = 0.3, 0.1
"""First guess, in passes over one row: what a second row adds, and each further one. Measured once tried."""
STALE = 16
"""Rounds with drafts after which a pass over one row is due again, lest everything be compared with the past."""


class Recent:
    """The last few measurements of one kind, and their median, found when one is added: it is asked for often."""

    def __init__(self, size: int = KEPT):
        self.kept: deque = deque(maxlen=size)
        self.median = math.nan

    def add(self, value: float) -> None:
        self.kept.append(value)
        self.median = statistics.median(self.kept)

    def settled(self, guess: float) -> float:
        """The median, or while they are few that of them and a guess."""
        return self.median if len(self.kept) >= SURE else statistics.median([*self.kept, guess])


NONE = Recent()


class Costs:
    """Medians of recent passes by their rows, and of drafted tokens by the draft's name; one row's pass is 1.

    The first of each kind in a text is left out: it also makes room, and plans what later ones only do.
    """

    def __init__(self):
        self.ones = Recent(RECENT)
        self.passes: dict[int, Recent] = {}
        self.drafts: dict[str, Recent] = {}
        self.table: dict[int, float] = {}  # what `of_pass` said since the last measurement
        self.begun: set[int | str] = set()
        self.plain = 0.0  # seconds of a pass over one row, lately
        self.since = 0

    def start(self) -> None:
        """A new text."""
        self.begun.clear()

    def note_pass(self, rows: int, seconds: float) -> None:
        if rows > 1:
            self.note(self.passes, rows, seconds)
            self.since += 1
        elif self.counts(1):
            self.ones.add(seconds)
            self.plain, self.since = self.ones.median, 0

    def note_draft(self, name: str, seconds: float) -> None:
        self.note(self.drafts, name, seconds)

    def note(self, kept: dict, kind: int | str, seconds: float) -> None:
        if self.counts(kind) and self.known:
            self.table.clear()
            kept.setdefault(kind, Recent()).add(seconds / self.plain)

    def counts(self, kind: int | str) -> bool:
        known = kind in self.begun
        self.begun.add(kind)
        return known

    @property
    def known(self) -> bool:
        """Whether a pass over one row has been timed: everything else can be guessed from it."""
        return bool(self.ones.kept)

    @property
    def stale(self) -> bool:
        return self.since >= STALE

    def of_pass(self, rows: int) -> float:
        """What a pass over `rows` tokens takes: no more than one over more tokens was seen to take."""
        if rows not in self.table:
            self.table[rows] = self.estimated(rows)
        return self.table[rows]

    def estimated(self, rows: int) -> float:
        if rows == 1:
            return 1.0
        more = (found.median for n, found in self.passes.items() if n > rows and len(found.kept) >= SURE)
        return min(self.passes.get(rows, NONE).settled(self.guessed(rows)), *more, math.inf)

    def guessed(self, rows: int) -> float:
        """In a straight line between the nearest passes that were timed, or on with the usual slope."""
        timed = {1: 1.0} | {n: found.median for n, found in self.passes.items() if n != rows}
        low = max(n for n in timed if n < rows)
        high = min((n for n in timed if n > rows), default=None)
        if high is None:
            return timed[low] + (rows - low) * SLOPE + (STEP - SLOPE) * (low == 1)
        return timed[low] + (timed[high] - timed[low]) * (rows - low) / (high - low)

    def of_draft(self, name: str, share: float) -> float:
        """What one drafted token takes; `share` is the first guess."""
        return self.drafts.get(name, NONE).settled(share)
