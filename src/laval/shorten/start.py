"""What stands in before the first commit: zeros, a learned row, or a commit forced at the first token."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from laval.ops.segments import lead
from laval.shorten.commit import Commits, FixedRule, Rule
from laval.shorten.rows import Rows


class Start(nn.Module):
    """rows: how many start rows stand in front of the segments."""

    rows = 0

    def forced(self, commits: Commits, rows: Rows) -> Commits:
        """The commits, with any that this start insists on."""
        return commits

    def before(self, rows: Rows, commits: Commits, rule: Rule) -> tuple[Rows, Commits]:
        """The rows to reduce at the beginning of all streams, with what stands in front of the first."""
        return rows, commits

    def lead(self, segments: torch.Tensor) -> torch.Tensor:
        """The reduced rows [B, S, D] behind the start rows."""
        return segments


class Zeros(Start):
    """Fixed groups of k begin with k - 1 zero rows, as if shifted right (Hourglass). No commit yet: zeros are read."""

    def before(self, rows, commits, rule):
        shift = rule.drawn - 1 if isinstance(rule, FixedRule) else 0
        if not shift:
            return rows, commits
        behind = replace(
            rows,
            x=lead(rows.x, shift),
            ids=lead(rows.ids, shift, value=-1),
            lengths=rows.lengths + shift,
            first=rows.first - shift,
        )
        soft = None if commits.soft is None else lead(commits.soft, shift)
        return behind, replace(commits, bits=lead(commits.bits, shift, value=False), soft=soft)


class Null(Start):
    """A learned row goes first through the inner stack (dynamic pooling)."""

    rows = 1

    def __init__(self, width: int):
        super().__init__()
        self.row = nn.Parameter(torch.randn(width))

    def lead(self, segments):
        return torch.cat((self.row.expand(len(segments), 1, -1), segments), 1)


class Forced(Start):
    """The first row of a stream is a segment of its own (H-Net)."""

    def forced(self, commits, rows):
        return replace(commits, bits=commits.bits | ((rows.places == 0) & rows.real))


def build_start(name: str, width: int) -> Start:
    return {"zeros": Zeros, "null": lambda: Null(width), "forced": Forced}[name]()
