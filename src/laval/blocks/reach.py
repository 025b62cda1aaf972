"""Who may read whom: a key is readable where its place is not behind the query's. The one rule of every attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

FREE = 2**60
"""The place of a slot that holds nothing: behind every query."""


class Reach:
    """One call's queries and keys, by place in their stream of rows.

    queries [B, Q] and keys [B, S]: int64 places. plain: the keys are the queries' own rows, from place 0 on, so that
    ordinary causal attention is right and the filler behind each row is never read.
    """

    def __init__(self, queries: torch.Tensor, keys: torch.Tensor, plain: bool = False):
        self.queries, self.keys, self.plain = queries, keys, plain
        self.new = keys  # places of this call's own keys

    def extend(self, layer, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All that this call's queries may read at `layer`, given its new keys and values [B, H, T, Dh]."""
        return keys, values

    def table(self, layer, make: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
        """What `make(start, stop)` gives for distances from 0 to the furthest, at `layer`: [..., N, D]."""
        return make(0, self.furthest)

    @cached_property
    def distance(self) -> torch.Tensor | None:
        """Rows from key to query, negative where a key is not to be read: int64 [B, Q, S]; None when plain."""
        return None if self.plain else self.queries[:, :, None] - self.keys[:, None, :]

    @cached_property
    def furthest(self) -> int:
        """One more than the largest distance."""
        if self.plain:
            return self.queries.shape[1]
        seen = self.distance[self.distance >= 0]
        return int(seen.max()) + 1 if seen.numel() else 1

    @cached_property
    def visible(self) -> torch.Tensor | None:
        """Bool [B, 1, Q, S], None when plain. A query that reads nothing sees everything: no product is NaN."""
        return None if self.plain else or_all(self.seen)

    @cached_property
    def seen(self) -> torch.Tensor:
        return (self.distance >= 0)[:, None]


def or_all(visible: torch.Tensor) -> torch.Tensor:
    """The same mask [..., Q, S], with everything visible where nothing is: filler, whose outcome nobody reads."""
    return visible | ~visible.any(-1, keepdim=True)
