"""Segments to rows: one class per way. Each carries the open segment from call to call in its memory."""

from __future__ import annotations

import torch
from torch import nn

from laval.ops import reduce
from laval.ops.segments import Segments
from laval.shorten.commit import Commits
from laval.shorten.memory import Memory
from laval.shorten.rows import Rows


class Reduce(nn.Module):
    """rows [B, T, D] and their segments -> one row for each closed segment, [B, S, D]."""

    def forward(self, rows: Rows, commits: Commits, segments: Segments, memory: Memory) -> torch.Tensor:
        raise TypeError(f"{type(self).__name__} does not say how: define forward(rows, commits, segments, memory)")


def carry(memory: Memory, batch) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What the open segment left: two tensors, or None at the start."""
    found = memory.recall("open", batch)
    return None if found is None else (found, memory.recall("count", batch))


def carry_on(memory: Memory, carried, batch) -> None:
    for name, value in zip(("open", "count"), carried, strict=True):
        memory.keep(name, value, batch)


class Mean(Reduce):
    """The mean; commits that want a gradient get dynamic pooling's."""

    def forward(self, rows, commits, segments, memory):
        found, carried = reduce.mean(rows.x, segments, carry(memory, rows.batch), commits.soft)
        carry_on(memory, carried, rows.batch)
        return found


class Last(Reduce):
    """The vector that the segment ends with (H-Net)."""

    def forward(self, rows, commits, segments, memory):
        return reduce.last(rows.x, segments)


class Maximum(Reduce):
    """The largest of each feature."""

    def forward(self, rows, commits, segments, memory):
        found, carried = reduce.maximum(rows.x, segments, memory.recall("open", rows.batch))
        memory.keep("open", carried, rows.batch)
        return found


class Linear(Reduce):
    """One map of the segment's last `places` vectors side by side; those of a shorter one stand at the end."""

    def __init__(self, width: int, places: int):
        super().__init__()
        self.places = places
        self.map = nn.Linear(places * width, width)

    def forward(self, rows, commits, segments, memory):
        found, carried = reduce.windows(rows.x, segments, self.places, carry(memory, rows.batch))
        carry_on(memory, carried, rows.batch)
        return self.map(found.flatten(2))


class Attention(Reduce):
    """The reduced row asks all rows of its level up to its segment's end (Hourglass, attention pooling).

    y = norm(x); q = norm(reduce(y)); q + attention(q, y), then a feed-forward branch.
    """

    def __init__(self, kind, base: Reduce):
        super().__init__()
        self.norm, self.query_norm = kind.norm(), kind.norm()
        self.base = base
        self.resample = kind.resample()

    def forward(self, rows, commits, segments, memory):
        y = self.norm(rows.x)
        asking = self.query_norm(self.base(rows.having(y), commits, segments, memory.part("base")))
        reach = memory.reach(rows, asking=segments.ends + rows.first[:, None])
        return self.resample(asking, y, reach, rows.spacing)


def build_reduce(name: str, kind, places: int) -> Reduce:
    """The class of a name; places: how many tokens a linear map reads."""
    made = {
        "mean": Mean,
        "last": Last,
        "max": Maximum,
        "linear": lambda: Linear(kind.width, places),
        "attention": lambda: Attention(kind, Mean()),
        "attention_linear": lambda: Attention(kind, Linear(kind.width, places)),
    }
    return made[name]()
