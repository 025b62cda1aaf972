"""What a lossless generation did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Account:
    """Counts of one generation. passes: dense forwards after the prompt. replays: times that a near-tie was settled
    by reading again token by token, `replayed` tokens in all. seconds: prompt, drafting, verifying, replaying.
    """

    new_tokens: int = 0
    passes: int = 0
    proposed: Counter = field(default_factory=Counter)
    accepted: Counter = field(default_factory=Counter)
    rounds: Counter = field(default_factory=Counter)
    replays: int = 0
    replayed: int = 0
    seconds: Counter = field(default_factory=Counter)

    @property
    def tokens_per_pass(self) -> float:
        """New tokens per dense forward; the first comes with the prompt, from none."""
        return (self.new_tokens - 1) / self.passes if self.passes else 1.0

    @property
    def acceptance(self) -> float | None:
        """Share of the proposed tokens that stood; None if nothing was proposed."""
        proposed = self.proposed.total()
        return self.accepted.total() / proposed if proposed else None

    def note(self, draft: str, proposed: int, accepted: int) -> None:
        self.passes += 1
        self.rounds[draft] += 1
        if proposed:
            self.proposed[draft] += proposed
            self.accepted[draft] += accepted

    def line(self) -> str:
        """One line for people."""
        parts = [f"{self.tokens_per_pass:.2f} tokens per verification pass"]
        if self.acceptance is not None:
            total, stood = self.proposed.total(), self.accepted.total()
            parts.append(f"{100 * self.acceptance:.0f} % of {total} drafted tokens accepted ({stood})")
        drafts = ", ".join(f"{name} {count}" for name, count in self.rounds.most_common())
        return "; ".join([*parts, f"passes by draft: {drafts or 'none'}"])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        names = ("new_tokens", "passes", "tokens_per_pass", "acceptance", "replays", "replayed")
        record = {name: getattr(self, name) for name in names}
        counters = ("rounds", "proposed", "accepted", "seconds")
        return record | {name: dict(getattr(self, name)) for name in counters}


@dataclass(frozen=True, eq=False)
class LosslessGeneration:
    """ids [1, prompt + new], and the account of how they came about."""

    ids: torch.Tensor
    account: Account
