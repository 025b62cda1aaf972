"""Index arithmetic of segments. A commit at t ends a segment there, t included; every count is int64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Segments:
    """Where the segments of B rows of T tokens lie; S is the largest number of commits in a row.

    of [B, T]: a token's segment, the number of commits before it; S + 1 for filler. closed [B, T]: commits up to the
    token, itself included: how many segments it may read. ends [B, S]: each segment's last token (0 where a row has
    fewer). counts [B]: commits of each row; its open segment has that number.
    """

    of: torch.Tensor
    closed: torch.Tensor
    ends: torch.Tensor
    counts: torch.Tensor

    @property
    def slots(self) -> int:
        """S."""
        return self.ends.shape[1]


def filled(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """True at the first lengths[r] of `width` places, the rest is filler: [B] -> bool [B, width]."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def cut(bits: torch.Tensor, lengths: torch.Tensor | None = None) -> Segments:
    """Segments from commit bits, bool [B, T]; row r has lengths[r] tokens, by default T."""
    batch, length = bits.shape
    lengths = bits.new_full((batch,), length, dtype=torch.long) if lengths is None else lengths
    real = filled(lengths, length)
    bits = bits & real
    closed = bits.cumsum(1)  # int64 whatever the input: half precision counts to 256 only
    counts = bits.sum(1)
    slots = int(counts.max()) if counts.numel() else 0
    before = closed - bits.long()
    of = torch.where(real, before, slots + 1)
    places = torch.arange(length, device=bits.device).expand(batch, -1)
    ends = counts.new_zeros(batch, slots + 1).scatter(1, torch.where(bits, before, slots), places)
    return Segments(of, closed, ends[:, :slots], counts)


def pick(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of x [B, N, ...] by index [B, M] -> [B, M, ...]."""
    return x.flatten(0, 1).index_select(0, flat(index, x.shape[1])).unflatten(0, index.shape)


def flat(index: torch.Tensor, width: int) -> torch.Tensor:
    """index [B, M] into rows of `width` places as one index into all of them: [B * M]."""
    start = torch.arange(index.shape[0], device=index.device)[:, None] * width
    return (index + start).flatten()


def gather_left(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The masked places of every row moved to its left, in order: x [B, T, ...], mask bool [B, T]; filler behind."""
    return pick(x, (~mask).long().argsort(dim=1, stable=True))


def scatter_back(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What `gather_left` moved, at its old places, and zeros where the mask is False."""
    found = pick(x, (mask.cumsum(1) - 1).clamp(min=0))
    return found.masked_fill(~mask.view(*mask.shape, *[1] * (x.ndim - 2)), 0)


def lead(x: torch.Tensor, rows: int, value: float = 0) -> torch.Tensor:
    """`rows` rows of one value in front of x [B, T, ...]: [B, rows + T, ...]."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (rows, 0), value=value)
