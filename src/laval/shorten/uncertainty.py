"""Commits where a small model of its own does not know what comes next (BLT, arXiv 2412.09871, in these terms)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.nn import functional as F

from laval.blocks.paper import Paper
from laval.ops.segments import lead, pick
from laval.shorten.commit import Commits, Rule
from laval.shorten.kinds import PaperKind


@dataclass(frozen=True)
class Uncertainty:
    """A commit where the entropy H_t of the small model's next token, in nats, exceeds `threshold`.

    rule: "level" (H_t) or "rise" (H_t - H_{t-1}); the first token always commits. vocabulary: of the tokens; the other
    sizes are those of the small model, `paper` layers over the same text, which learns beside the large one.
    """

    outermost_only: ClassVar[bool] = True
    vocabulary: int = 256
    layers: int = 2
    width: int = 128
    heads: int = 4
    threshold: float = 1.3354
    rule: Literal["level", "rise"] = "level"

    def build(self, width: int, step: float) -> UncertaintyRule:
        paper = Paper(width=self.width, feed_forward=4 * self.width, heads=self.heads)
        return UncertaintyRule(paper, self.vocabulary, self.layers, self.threshold, self.rule == "rise")


class UncertaintyRule(Rule):
    """`reader`: the small model's ends; `stack`: its layers, with a cache of their own."""

    learned = True

    def __init__(self, paper: Paper, vocabulary: int, layers: int, threshold: float, rise: bool):
        super().__init__()
        self.reader = PaperKind(paper, vocabulary)
        self.stack = self.reader.stack(range(layers), last=True)
        self.threshold, self.rise = threshold, rise

    def decide(self, rows, memory):
        if bool((rows.ids[rows.real] < 0).any()):
            raise ValueError("this rule reads the tokens themselves, and the call brings embeddings; pass input_ids")
        ids = rows.ids.clamp(min=0)
        x = self.stack(rows.having(self.reader.enter(self.reader.embed(ids))), memory.part("reader")).x
        logits = self.reader.head(x)
        entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()
        measured = entropy - self.before(entropy, rows, memory) if self.rise else entropy
        measured = measured.masked_fill(rows.places == 0, torch.inf)
        bits = measured > self.threshold
        return Commits(bits, rows.real, score=measured, own_loss=next_token_loss(logits, ids, rows.real))

    def before(self, entropy: torch.Tensor, rows, memory) -> torch.Tensor:
        """The entropy at the token before each, zero before the first: [B, T]."""
        kept = memory.recall("entropy", rows.batch)
        behind = lead(entropy, 1) if kept is None else torch.cat((kept[:, None], entropy), 1)
        memory.keep("entropy", pick(behind, rows.lengths[:, None])[:, 0], rows.batch)
        return behind[:, :-1]

    def cuts(self, commits):
        return commits.score

    def loss(self, commits, labels=None):
        """The small model's own language loss, weight 1: it shares no parameter with the large one."""
        return commits.own_loss


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
    """Mean loss of each next token of a call, [B, T, V] and [B, T]; None without gradients, or with nothing next."""
    known = real[:, 1:]
    if not torch.is_grad_enabled() or not bool(known.any()):
        return None
    return F.cross_entropy(logits[:, :-1][known], ids[:, 1:][known])
