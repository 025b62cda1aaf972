"""Where the rows that ask sit while attention runs: at their own places among zeros, or close together."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Widest share of the sequence for which gathering beats the fused causal kernel, which reads half the scores but
# computes every row. On a CPU measured (9 heads of 64, 128 to 1024 tokens); elsewhere a cautious guess.
FUSED_SHARE = {"cpu": 0.75}
ELSEWHERE = 0.25


@dataclass(frozen=True)
class Seats:
    """Query row r sits at `slots[r]` of a [B * width] buffer, which attends under `mask`."""

    slots: torch.Tensor
    width: int
    mask: object


def seats(rows: torch.Tensor, batch: int, length: int, slots: int, context, implementation: str) -> Seats:
    """Choose seats for `rows`, distinct indices into batch * length, over `slots` keys."""
    own = Seats(rows, length, context.mask)
    # Own places need only the layer's unchanged mask, so they serve any implementation and any extra argument.
    # Only sdpa and eager masks are plain tensors to gather from; one token per sequence leaves nothing to gather.
    plain = implementation == "sdpa" or (implementation == "eager" and context.mask is not None)
    if length == 1 or context.kwargs or not plain:
        return own
    asked = torch.zeros(batch * length, dtype=torch.long, device=rows.device).index_fill(0, rows, 1)
    order = asked.view(batch, length).cumsum(1)  # [B, T]
    width = int(order[:, -1].max())
    share = FUSED_SHARE.get(rows.device.type, ELSEWHERE) if context.mask is None else 1.0
    if width == length or width > share * length:
        return own
    return close_together(rows, order, width, slots, context.mask)


def close_together(rows, order, width: int, slots: int, mask) -> Seats:
    """Each sequence's rows in its first seats; spare seats repeat the mask of token 0 and are never read."""
    batch, length = order.shape
    taken = rows // length * width + order.flatten()[rows] - 1  # [R]
    token = rows.new_zeros(batch * width).index_copy(0, taken, rows % length).view(batch, 1, width, 1)
    if mask is None:  # transformers gives sdpa no mask only where key j is visible to token i if j <= i
        return Seats(taken, width, torch.arange(slots, device=rows.device) <= token)
    return Seats(taken, width, torch.take_along_dim(mask, token, dim=2))  # [B, 1 or H, width, S]
