"""Rows back to tokens, each in O(T D): every token reads the last row that was there when it came.

`rows` are the row read before this call and the new ones, [B, 1 + S, ...]; `index` [B, T] says which a token reads.
"""

from __future__ import annotations

import torch

from laval.ops.segments import pick

CHUNK = 32
"""Rows that `smooth` takes at once."""


def repeat(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Each token gets its row: [B, 1 + S, D] -> [B, T, D]."""
    return pick(rows, index)


def since(bits: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
    """Tokens since the last commit, 0 at a commit: bool [B, T] -> int64 [B, T].

    carried [B]: the number at the token before; -1 before the first, where the count starts as at a commit.
    """
    steps = torch.arange(bits.shape[1], device=bits.device).expand_as(bits)
    start = torch.where(bits, steps, -1).cummax(1).values
    return steps - torch.where(start < 0, -1 - carried[:, None], start)


def by_position(projected: torch.Tensor, index: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """A map of its own for each place behind a commit, the last one for all later places.

    projected [B, 1 + S, K, D]: every row by all K maps; position [B, T] -> [B, T, D]. Published for fixed segments
    (Hourglass, arXiv 2110.13711, linear upsampling).
    """
    maps = projected.shape[2]
    return pick(projected.flatten(1, 2), index * maps + position.clamp(max=maps - 1))


def smooth(x: torch.Tensor, share: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
    """z_c = P_c x_c + (1 - P_c) z_{c-1}: x [B, S, D], share P [B, S], carried z_{-1} [B, D] -> [B, S, D].

    Source: H-Net (arXiv 2507.07955), smoothing module.
    """
    keep = (1 - share).clamp(min=1e-30).log()
    found = []
    for start in range(0, x.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        found.append(smooth_chunk(x[:, part], share[:, part], keep[:, part], carried))
        carried = found[-1][:, -1]
    return torch.cat(found, 1) if found else x


def smooth_chunk(x, share, keep, carried) -> torch.Tensor:
    """A few rows as one product with what is left of each at each."""
    total = keep.cumsum(1)
    left = (total[:, :, None] - total[:, None, :]).tril().exp().tril()  # [B, S, S]
    return (left * share[:, None, :]) @ x + total.exp()[..., None] * carried[:, None]
