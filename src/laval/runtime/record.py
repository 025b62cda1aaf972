"""What ran, for every forward inside a `with` block."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


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
