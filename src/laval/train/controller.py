"""Holds a wanted mean depth while routers move: the threshold follows their scores, no alpha to guess."""

from __future__ import annotations

import torch

GRID = torch.linspace(0, 1, 65)


class DepthController:
    """One threshold for all routed layers, read off a running quantile function of the scores.

    layers: depth of the model. routed: how many layers may be skipped. rate: share of each new batch in the running
    average; near 1 reacts at once, near 0 damps.
    """

    def __init__(self, layers: int, routed: int, rate: float = 0.2):
        self.layers, self.routed, self.rate = layers, routed, rate
        self.quantiles: torch.Tensor | None = None

    def observe(self, scores: torch.Tensor) -> None:
        """Scores of one update, any shape."""
        flat = scores.detach().float().flatten()
        now = torch.quantile(flat[:: max(1, flat.numel() // 200_000)], GRID.to(flat.device)).cpu()
        self.quantiles = now if self.quantiles is None else torch.lerp(self.quantiles, now, self.rate)

    def check(self, depth: float) -> None:
        """ValueError for a depth that skipping the routed layers cannot reach."""
        if not self.layers - self.routed <= depth <= self.layers:
            raise ValueError(
                f"depth is {depth}; expected {self.layers - self.routed} to {self.layers} "
                f"({self.routed} of {self.layers} layers may be skipped): change depth, or route more layers"
            )

    def threshold(self, depth: float) -> float:
        """The score above which tokens run so that `depth` layers run on average; 0 before anything was observed.

        ValueError for a depth that skipping the routed layers cannot reach.
        """
        self.check(depth)
        if self.quantiles is None:
            return 0.0
        if depth == self.layers:
            return float("-inf")
        place = (self.layers - depth) / self.routed * (len(GRID) - 1)
        low = min(int(place), len(GRID) - 2)
        return float(torch.lerp(self.quantiles[low], self.quantiles[low + 1], place - low))
