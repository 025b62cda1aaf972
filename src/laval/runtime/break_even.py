"""Where skipping loses: measured ratios by rows, and what they say about a call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BreakEven:
    """Dense seconds over skipping's as measured on one machine: below 1 skipping loses.

    depth: mean layers per token at which it was measured. decode: by rows B of single steps with a cache. prefill: by
    rows B * T of any other call. device: the kind of device that it holds for, "cpu" or "cuda".
    """

    depth: float
    decode: Mapping[int, float]
    prefill: Mapping[int, float]
    device: str = "cpu"

    def loses(self, rows: int, step: bool) -> str | None:
        """Why skipping does not pay for `rows` rows, in a single step or not; None where it does, or nothing is known.

        Decided by the nearest row count that was measured, by their ratio.
        """
        table = self.decode if step else self.prefill
        if not table:
            return None
        near = min(table, key=lambda measured: abs(math.log(measured / max(rows, 1))))
        if table[near] >= 1:
            return None
        taken = "" if near == rows else f" at {near}"
        return f"{counted(rows)}: skipping was measured at {table[near]:.3g}x dense{taken} on this machine"


def counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
