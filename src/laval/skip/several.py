"""A policy's answers at one layer for one token of each of several sequences, rows [B, D]."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from laval.skip.route import Route


class Decisions(NamedTuple):
    """Which rows run a layer, as plain booleans [B].

    run_scale, skip_scale: what the update of a row that runs or skips is multiplied by, [B, 1], None for 1.
    record: makes the Route of those who run, bool [B, 1].
    """

    ran: list[bool]
    record: Callable[[torch.Tensor], Route]
    run_scale: torch.Tensor | None = None
    skip_scale: torch.Tensor | None = None

    def agreed(self) -> Decisions:
        """Skipped only if every row asks to skip."""
        return self._replace(ran=[any(self.ran)] * len(self.ran))


class Several:
    """Here a policy's ordinary answers.

    first: a weight [b, D] whose product e [B, b] with the layer's normalised input z [B, D] `decide` wants, or None.
    """

    first: torch.Tensor | None = None

    def __init__(self, policy, index: int):
        self.policy, self.index = policy, index

    def decide(self, z: torch.Tensor, e: torch.Tensor, context) -> Decisions:
        """Which rows run the layer."""
        states = z[:, None]  # [B, 1, D]
        route = self.policy.route(self.index, states, context)
        return Decisions(
            route.run.flatten().tolist(),
            lambda run: self.policy.replay(self.index, states, run),
            route.run_scale,
            route.skip_scale,
        )

    def route(self, decisions: Decisions) -> Route:
        """The record of decisions, made when somebody asks for it."""
        return decisions.record(torch.tensor(decisions.ran)[:, None])

    def adapt(self, u: torch.Tensor) -> torch.Tensor:
        """What skipping rows u [R, D] add."""
        return self.policy.adapt(self.index, u[:, None])[:, 0]
