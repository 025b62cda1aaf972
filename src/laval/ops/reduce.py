"""Segments to rows, each in O(T D): mean, last, max, and the tokens that a linear map reads.

Every function takes what the open segment carried over from an earlier call, and the first two give what it carries
on: a long text in pieces is reduced as if it were whole.
"""

from __future__ import annotations

import torch

from laval.ops.segments import Segments, filled, flat, lead, pick

Carry = tuple[torch.Tensor, torch.Tensor]
"""Of the open segment: its sum [B, D] (or maximum), and its number of tokens, int64 [B]."""


def wide(x: torch.Tensor) -> torch.Tensor:
    """x in the number type that sums are taken in: float32 or better."""
    return x if x.dtype == torch.float64 else x.float()


def segment_sums(x: torch.Tensor, segments: Segments, carried: torch.Tensor | None = None) -> torch.Tensor:
    """Sum of each segment, the open one behind the closed: x [B, T, D] -> [B, S + 1, D]; carried [B, D]."""
    batch, width = x.shape[0], segments.slots + 2  # the last one takes the filler
    sums = x.new_zeros(batch, width, x.shape[-1])
    if carried is not None:
        sums[:, 0] = carried
    index = flat(segments.of, width)
    return sums.flatten(0, 1).index_add(0, index, x.flatten(0, 1)).unflatten(0, (batch, width))[:, :-1]


def segment_sizes(segments: Segments, carried: torch.Tensor | None = None) -> torch.Tensor:
    """Tokens of each segment, the open one behind the closed: int64 [B, S + 1]; carried [B]."""
    batch, width = segments.of.shape[0], segments.slots + 2
    sizes = torch.bincount(flat(segments.of, width), minlength=batch * width).view(batch, width)[:, :-1]
    return sizes if carried is None else torch.cat((sizes[:, :1] + carried[:, None], sizes[:, 1:]), 1)


def mean(
    x: torch.Tensor, segments: Segments, carry: Carry | None = None, soft: torch.Tensor | None = None
) -> tuple[torch.Tensor, Carry]:
    """Mean of each closed segment, x [B, T, D] -> [B, S, D], and the carry of the open one.

    soft [B, T]: the commits as numbers that want a gradient; it is the one that dynamic pooling's dense matrix gives
    (arXiv 2211.09761): dL/db_i = 1/n sum over later t of the segment <dL/ds, h_t - s>.
    """
    carried, count = carry or (None, None)
    sums = segment_sums(wide(x), segments, carried)
    sizes = segment_sizes(segments, count)
    means = sums[:, :-1] / sizes[:, :-1].clamp(min=1)[..., None]
    if soft is not None:
        means = means + commit_gradient(wide(x).detach(), means.detach(), segments, sizes, soft)
    last = segments.counts[:, None]
    return means.to(x.dtype), (pick(sums, last)[:, 0], pick(sizes, last)[:, 0])


def commit_gradient(x, means, segments: Segments, sizes, soft: torch.Tensor) -> torch.Tensor:
    """Zeros [B, S, D] with the gradient of `mean` by the commits."""
    behind = lead(means.flip(1), 2).flip(1)  # the open segment and the filler have no mean
    closed = (segments.of < segments.counts[:, None])[..., None]
    apart = torch.where(closed, x - pick(behind, segments.of), 0)
    # what lies apart sums to nothing over a whole segment: the rest of it is minus what came so far
    later = -apart.cumsum(1) / pick(lead(sizes, 0), segments.of.clamp(max=segments.slots)).clamp(min=1)[..., None]
    slack = (soft - soft.detach()).to(x.dtype)[..., None]  # zero, with the gradient of soft
    return segment_sums(torch.where(closed, slack * later, 0), segments)[:, :-1]


def last(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """The last token of each closed segment: x [B, T, D] -> [B, S, D]."""
    return pick(x, segments.ends)


def maximum(
    x: torch.Tensor, segments: Segments, carried: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum of each closed segment, x [B, T, D] -> [B, S, D], and of the open one [B, D] (-inf where empty)."""
    batch, width, depth = x.shape[0], segments.slots + 2, x.shape[-1]
    start = x.new_full((batch, width, depth), -torch.inf)
    if carried is not None:
        start[:, 0] = carried
    index = flat(segments.of, width)[:, None].expand(-1, depth)
    found = start.flatten(0, 1).scatter_reduce(0, index, x.flatten(0, 1), "amax").unflatten(0, (batch, width))
    real = filled(segments.counts, segments.slots)[..., None]
    return found[:, :-2].masked_fill(~real, 0), pick(found, segments.counts[:, None])[:, 0]


def windows(x: torch.Tensor, segments: Segments, width: int, carry: Carry | None = None) -> tuple[torch.Tensor, Carry]:
    """The last `width` tokens of each closed segment, zeros in front of a shorter one: [B, S, width, D].

    carry: the last width - 1 tokens before these [B, width - 1, D], and the size of the open segment [B].
    """
    carried, count = carry or (x.new_zeros(x.shape[0], width - 1, x.shape[-1]), None)
    behind = torch.cat((carried, x), 1)
    sizes = segment_sizes(segments, count)
    age = torch.arange(width - 1, -1, -1, device=x.device)
    index = segments.ends[..., None] + width - 1 - age  # [B, S, width]
    found = pick(behind, index.flatten(1)).unflatten(1, index.shape[1:])
    found = found.masked_fill((age >= sizes[:, :-1, None])[..., None], 0)
    lengths = (segments.of <= segments.slots).sum(1)
    tail = lengths[:, None] + torch.arange(width - 1, device=x.device)
    return found, (pick(behind, tail), pick(sizes, segments.counts[:, None])[:, 0])
