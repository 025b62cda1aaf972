"""The plain twins of segments, reduce, upsample and relative attention: one row, one token at a time. For tests."""

from __future__ import annotations

import torch


def segments_of(bits: torch.Tensor) -> tuple[list[list[int]], list[int]]:
    """Closed segments of bits [T] as lists of tokens, and the open one."""
    closed, still_open = [], []
    for token, bit in enumerate(bits.tolist()):
        still_open.append(token)
        if bit:
            closed.append(still_open)
            still_open = []
    return closed, still_open


def mean(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """x [T, D], bits [T] -> [S, D]."""
    found = [x[tokens].mean(0) for tokens in segments_of(bits)[0]]
    return torch.stack(found) if found else x[:0]


def last(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    found = [x[tokens[-1]] for tokens in segments_of(bits)[0]]
    return torch.stack(found) if found else x[:0]


def maximum(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    found = [x[tokens].amax(0) for tokens in segments_of(bits)[0]]
    return torch.stack(found) if found else x[:0]


def windows(x: torch.Tensor, bits: torch.Tensor, width: int) -> torch.Tensor:
    """[S, width, D]: zeros, then the last tokens of the segment."""
    found = []
    for tokens in segments_of(bits)[0]:
        kept = x[tokens[-width:]]
        found.append(torch.cat((x.new_zeros(width - len(kept), x.shape[1]), kept)))
    return torch.stack(found) if found else x.new_zeros(0, width, x.shape[1])


def dense_mean(x: torch.Tensor, soft: torch.Tensor) -> torch.Tensor:
    """Mean by a T x S matrix that the commits [T] enter as numbers, as dynamic pooling has it (0 or 1 each)."""
    before = soft.cumsum(0) - soft
    apart = torch.arange(int(soft.detach().sum().round()), dtype=x.dtype) - before[:, None]  # [T, S]
    weight = torch.where(apart.detach() == 0, 1 - apart, 0 * apart)
    return (weight / weight.sum(0, keepdim=True)).T @ x


def repeat(rows: torch.Tensor, bits: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """rows [S, D] and the start row [D] -> [T, D]."""
    found, read = [], 0
    for bit in bits.tolist():
        read += bit
        found.append(rows[read - 1] if read else start)
    return torch.stack(found) if found else rows.new_zeros(0, rows.shape[1])


def since(bits: torch.Tensor) -> list[int]:
    found, count = [], -1
    for bit in bits.tolist():
        count = 0 if bit else count + 1
        found.append(count)
    return found


def smooth(x: torch.Tensor, share: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
    """x [S, D], share [S], carried [D] -> [S, D]."""
    found = []
    for row, part in zip(x, share, strict=True):
        carried = part * row + (1 - part) * carried
        found.append(carried)
    return torch.stack(found) if found else x


def relative_attention(q, k, v, table, content, position, distance) -> torch.Tensor:
    """One head: q [Q, Dh], k, v [S, Dh], table [N, Dh], biases [Dh], distance [Q, S] (below 0: not visible)."""
    mixed = []
    for query, away in zip(q, distance.tolist(), strict=True):
        seen = [key for key, d in enumerate(away) if d >= 0]
        scores = [(query + content) @ k[key] + (query + position) @ table[away[key]] for key in seen]
        weights = (torch.stack(scores) / q.shape[-1] ** 0.5).softmax(0) if seen else q.new_zeros(0)
        mixed.append(weights @ v[seen])
    return torch.stack(mixed)
