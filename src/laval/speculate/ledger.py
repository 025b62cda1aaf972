"""The floor: how much drafts may lose, whatever their estimates promise."""

from __future__ import annotations

ROOM = 3.0
"""Passes over one row that may be lost at the start, and at most at any time: no gain is saved up beyond."""
SHARE = 0.01
"""Of plain decoding's time so far, what may be lost on top."""


class Ledger:
    """What may still be lost, in passes over one row. Gains fill it up, losses empty it, each token adds `SHARE`.

    Over any n tokens, drafts cost at most n * SHARE + ROOM passes, and one round, more than plain decoding.
    """

    def __init__(self):
        self.left = ROOM

    @property
    def open(self) -> bool:
        """Whether a draft may be risked."""
        return self.left > 0

    def note(self, tokens: int, passes: float) -> None:
        """A round that wrote `tokens` in the time of so many `passes` over one row."""
        self.left = min(ROOM, self.left + tokens * (1 + SHARE) - passes)
