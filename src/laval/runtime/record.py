"""What ran: in one forward, or in every forward inside a `with` block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from laval.skip import Route


@dataclass
class Recording:
    """Routes of successive forwards of one model: `run` and `gate` are [L, B, T] each, one entry per forward."""

    runs: list[torch.Tensor] = field(default_factory=list)
    gates: list[torch.Tensor] = field(default_factory=list)

    def add(self, run: torch.Tensor, gate: torch.Tensor) -> None:
        self.runs.append(run)
        self.gates.append(gate)

    @property
    def run(self) -> torch.Tensor:
        """All forwards joined along time, bool [L, B, T]."""
        return torch.cat(self.runs, dim=-1)

    @property
    def gate(self) -> torch.Tensor:
        """Router probabilities, NaN where a layer has no router, [L, B, T]."""
        return torch.cat(self.gates, dim=-1)


class Taken(Sequence):
    """The routes of one step, written out only for who asks: thousands of tokens pass and few are looked at.

    answers: of a policy, layer by layer; decisions: what each of them decided.
    """

    def __init__(self, answers: list, decisions: list):
        self.answers, self.decisions = answers, decisions

    def __len__(self) -> int:
        return len(self.decisions)

    def __getitem__(self, index: int) -> Route:
        return self.answers[index].route(self.decisions[index])
