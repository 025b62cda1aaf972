"""A ragged batch: each row of the batch is a stream of vectors of its own length, at the left."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from laval.ops.segments import filled


@dataclass(frozen=True)
class Rows:
    """The new vectors of B streams: x [B, T, D]; stream r has lengths[r] of them, the rest is filler nobody reads.

    first [B]: vectors that the stream had before these. ids [B, T]: the token that each vector ends with, -1 for a
    start row. batch: the streams' numbers in the memory, int64 [B]; None for all. spacing: how far apart neighbours
    are for attention.
    """

    x: torch.Tensor
    lengths: torch.Tensor
    first: torch.Tensor
    ids: torch.Tensor
    batch: torch.Tensor | None = None
    spacing: int = 1

    @property
    def real(self) -> torch.Tensor:
        """False at filler: bool [B, T]."""
        return filled(self.lengths, self.x.shape[1])

    @property
    def places(self) -> torch.Tensor:
        """Number of each vector in its stream: int64 [B, T]."""
        return self.first[:, None] + torch.arange(self.x.shape[1], device=self.first.device)

    def having(self, x: torch.Tensor) -> Rows:
        """Other vectors in the same places."""
        return replace(self, x=x)

    def only(self, busy: torch.Tensor) -> Rows:
        """The streams with numbers `busy` [R] among these."""
        batch = busy if self.batch is None else self.batch[busy]
        return Rows(self.x[busy], self.lengths[busy], self.first[busy], self.ids[busy], batch, self.spacing)

    def among(self, whole: Rows, busy: torch.Tensor) -> Rows:
        """These streams at their numbers `busy` among those of `whole`, the others without vectors."""
        x = self.x.new_zeros(len(whole.lengths), *self.x.shape[1:]).index_copy(0, busy, self.x)
        return whole.having(x)
