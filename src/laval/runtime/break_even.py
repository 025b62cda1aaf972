"""Where skipping loses: measured ratios by rows, with their noise, and what they say about a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLOOR = 0.98
"""Skipping stays where the whole interval lies above. A point estimate is not enough, intervals being 5 to 12 % wide.
And skipping costs quality: where it may cost time too there is no reason for it."""
FEWEST = 5  # rounds of which a bootstrap interval means anything


@dataclass(frozen=True)
class Measured:
    """Dense seconds over skipping's, median of so many rounds, and its 95 % interval: below 1 skipping loses."""

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def pays(self) -> bool:
        return self.rounds >= FEWEST and self.low >= FLOOR

    def __str__(self) -> str:
        return f"{self.ratio:.3g}x dense ({self.low:.3g} to {self.high:.3g} in {counted(self.rounds, 'round')})"


@dataclass(frozen=True)
class BreakEven:
    """What was measured on one machine.

    depth: mean layers per token at which it was measured. decode: by rows B of single steps with a cache. prefill: by
    rows B * T of any other call. device: the kind of device that it holds for, "cpu" or "cuda".
    """

    depth: float
    decode: Mapping[int, Measured]
    prefill: Mapping[int, Measured]
    device: str = "cpu"

    def loses(self, rows: int, step: bool) -> str | None:
        """Why skipping is not shown to pay for `rows` rows, in a single step or not; None where it is.

        Decided by the worse of the measured row counts around it; None too where nothing of its kind was measured.
        """
        table = self.decode if step else self.prefill
        worse = min(around(table, rows), key=lambda near: (table[near].pays, table[near].low), default=None)
        if worse is None or table[worse].pays:
            return None
        taken = "" if worse == rows else f" at {worse}"
        return f"{counted(rows, 'row')}: skipping was measured at {table[worse]}{taken} on this machine"


def around(table: Mapping[int, Measured], rows: int) -> list[int]:
    """The measured row counts next to `rows` on both sides, or itself. One row stands for itself alone.

    A single row is a branch that never touches skipped weights; several share what is read, by other kernels.
    """
    kind = [measured for measured in table if (measured == 1) == (rows == 1)]
    below, above = [one for one in kind if one <= rows], [one for one in kind if one >= rows]
    return sorted({*([max(below)] if below else []), *([min(above)] if above else [])})


def counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
