"""H-Net's router (arXiv 2507.07955): a segment ends where neighbouring rows stop resembling each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops.segments import lead, pick
from laval.shorten.commit import Commits, Rule


@dataclass(frozen=True)
class Cosine:
    """Commits by (1 - cosine) / 2 of a row and the one before. factor: N of the ratio loss; 0 takes the plan's.

    weight: of the ratio loss. legacy: as in the authors' code, equality to one half is no commit and the first map
    acts on the row before, the second on the row itself; the paper has both the other way.
    """

    factor: float = 0.0
    weight: float = 0.03
    legacy: bool = False
    threshold: float = 0.5

    def build(self, width: int, step: float) -> CosineRule:
        factor = self.factor or step
        if factor <= 1:
            raise ValueError(f"cosine: factor is {factor:g}; expected above 1")
        return CosineRule(width, factor, self.weight, self.threshold, self.legacy)


class CosineRule(Rule):
    """The first row of a stream commits with chance 1. Both maps start as the identity."""

    learned = True

    def __init__(self, width: int, factor: float, weight: float, threshold: float = 0.5, legacy: bool = False):
        super().__init__()
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, width, bias=False)
        self.factor, self.weight, self.threshold, self.legacy = factor, weight, threshold, legacy
        nn.init.eye_(self.queries.weight)
        nn.init.eye_(self.keys.weight)

    def decide(self, rows, memory):
        chance = (1 - self.likeness(rows, memory)) / 2
        chance = torch.where(rows.places == 0, 1.0, chance.clamp(0, 1))
        bits = chance > self.threshold if self.legacy else chance >= self.threshold
        return Commits(bits, rows.real, chance)

    def cuts(self, commits):
        return commits.chance

    def likeness(self, rows, memory) -> torch.Tensor:
        """Cosine of each row and the one before it, [B, T], in float32 or better."""
        before, now = (self.queries, self.keys) if self.legacy else (self.keys, self.queries)
        kept = memory.recall("row", rows.batch)
        behind = lead(rows.x, 1) if kept is None else torch.cat((kept[:, None], rows.x), 1)  # [B, 1 + T, D]
        memory.keep("row", pick(behind, rows.lengths[:, None])[:, 0], rows.batch)
        pair = before(behind[:, :-1]), now(rows.x)
        if rows.x.dtype != torch.float64:
            pair = tuple(part.float() for part in pair)
        return F.cosine_similarity(*pair, dim=-1)

    def loss(self, commits, labels=None):
        """weight * N / (N - 1) * ((N - 1) F G + (1 - F)(1 - G)) over real rows; F: commits, G: mean chance."""
        chance, n = commits.chance[commits.real], self.factor
        share, mean = commits.bits[commits.real].to(chance.dtype).mean(), chance.mean()
        return self.weight * n / (n - 1) * ((n - 1) * share * mean + (1 - share) * (1 - mean))
