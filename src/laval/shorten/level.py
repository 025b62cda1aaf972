"""One level of the hierarchy: outer stack, commit, reduce, what is inside, upsample, outer stack again."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops.segments import Segments, cut, lead, pick
from laval.shorten.commit import Commits, Rule
from laval.shorten.memory import Memory
from laval.shorten.reduce import Reduce
from laval.shorten.rows import Rows
from laval.shorten.start import Start
from laval.shorten.upsample import Reading, Upsample

Given = tuple[torch.Tensor | None, ...]
"""Commits to replay at each level, outermost first; None where the rule decides."""


class Core(nn.Module):
    """The innermost level: one stack and nothing to shorten."""

    def __init__(self, stack: nn.Module):
        super().__init__()
        self.stack = stack

    def forward(self, rows: Rows, memory: Memory, given: Given = ()) -> tuple[Rows, tuple[Commits, ...]]:
        return self.stack(rows, memory), ()


class Level(nn.Module):
    """Rows in, rows of the same places out, and the commits of this level and of those inside, outermost first.

    h = outer(x); b = commit(h); g = reduce(h, b); z = inner(g); y = outer'(skip(h) + upsample(z)). `in_tokens`: rows
    inside are as far apart as the tokens that they stand for, which fixed rules know; otherwise by one.
    """

    def __init__(
        self,
        outer: nn.Module,
        commit: Rule,
        start: Start,
        reduce: Reduce,
        reduced_norm: nn.Module,
        inner: nn.Module,
        upsample: Upsample,
        upsampled_norm: nn.Module,
        skip: nn.Module,
        outward: nn.Module,
        in_tokens: bool = False,
    ):
        super().__init__()
        self.outer = outer
        self.commit = commit
        self.start = start
        self.reduce = reduce
        self.reduced_norm = reduced_norm
        self.inner = inner
        self.upsample = upsample
        self.upsampled_norm = upsampled_norm
        self.skip = skip
        self.outward = outward
        self.in_tokens = in_tokens

    def forward(self, rows: Rows, memory: Memory, given: Given = ()) -> tuple[Rows, tuple[Commits, ...]]:
        h = self.outer(rows, memory.part("outer"))
        commits = self.start.forced(self.commit(h, memory.part("commit"), first_of(given)), h)
        segments = cut(commits.bits, h.lengths)
        reduced = self.shortened(h, commits, segments, memory)
        inner, deeper = self.inside(reduced, memory, given[1:])
        upsampled = self.lengthened(h, commits, segments, inner, memory)
        y = self.outward(h.having(self.skip(h.x) + upsampled), memory.part("outward"))
        memory.settle()
        return y, (commits, *deeper)

    def shortened(self, h: Rows, commits: Commits, segments: Segments, memory: Memory) -> Rows:
        """The rows that the inner level gets from this call: start rows at first, then one for each segment closed."""
        x, ids = self.reduced(h, commits, segments, memory), pick(h.ids, segments.ends)
        if memory.fresh:
            x, ids = self.start.lead(x), lead(ids, self.start.rows, value=-1)
        if memory.fresh and not x.shape[1]:  # every memory inside must see all streams begin
            x, ids = F.pad(x, (0, 0, 0, 1)), F.pad(ids, (0, 1), value=-1)
        lengths = segments.counts + self.starts(memory)
        first = memory.recall("closed", h.batch)
        first = torch.zeros_like(lengths) if first is None else first
        memory.keep("closed", first + lengths, h.batch)
        spacing = h.spacing * self.commit.drawn if self.in_tokens else 1
        return Rows(self.reduced_norm(x), lengths, first, ids, h.batch, spacing)

    def reduced(self, h: Rows, commits: Commits, segments: Segments, memory: Memory) -> torch.Tensor:
        """One row for each segment closed, [B, S, D]."""
        if memory.fresh:
            h, commits = self.start.before(h, commits, self.commit)
            segments = cut(commits.bits, h.lengths)
        return self.reduce(h, commits, segments, memory.part("reduce"))

    def starts(self, memory: Memory) -> int:
        """Start rows that this call lays."""
        return self.start.rows if memory.fresh else 0

    def inside(self, rows: Rows, memory: Memory, given: Given) -> tuple[Rows, tuple[Commits, ...]]:
        """The inner level over the streams that have new rows, and over no others."""
        busy = rows.lengths.nonzero()[:, 0]
        part = memory.part("inner")
        if memory.fresh or len(busy) == len(rows.lengths):
            return self.inner(rows, part, given)
        if not len(busy):
            return rows, ()
        given = tuple(None if bits is None else bits[busy] for bits in given)
        found, deeper = self.inner(rows.only(busy), part, given)
        return found.among(rows, busy), tuple(commits.among(len(rows.lengths), busy) for commits in deeper)

    def lengthened(self, h: Rows, commits: Commits, segments: Segments, inner: Rows, memory: Memory) -> torch.Tensor:
        """What the inner level says at each of the tokens' places, [B, T, D]."""
        reading = Reading(h, commits, segments, inner, self.starts(memory))
        return self.upsampled_norm(self.upsample(reading, memory.part("upsample")))

    def rules(self) -> list[Rule]:
        """The commit rules of this level and of those inside, outermost first."""
        return [self.commit, *(self.inner.rules() if isinstance(self.inner, Level) else ())]


def first_of(given: Given) -> torch.Tensor | None:
    return given[0] if given else None
