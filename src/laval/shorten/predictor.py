"""Learned commits of dynamic pooling (arXiv 2211.09761): a small network on the outer stack's output.

Where the authors' code differs from the paper, `legacy` follows the code: supervised rules put a second sigmoid into
their loss; the Gumbel rule samples at evaluation too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from laval.shorten.commit import Commits, Rule


class Predictor(Rule):
    """Linear, GELU, Linear on each row alone; a commit where the chance exceeds `threshold`."""

    learned = True

    def __init__(self, width: int, hidden: int, threshold: float = 0.5):
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.head = nn.Linear(hidden, 1)
        self.threshold = threshold

    def score(self, rows) -> torch.Tensor:
        """Logit of a commit at each row, [B, T], in float32 or better."""
        score = self.head(F.gelu(self.hidden(rows.x))).squeeze(-1)
        return score if score.dtype == torch.float64 else score.float()

    def cuts(self, commits):
        return commits.chance

    def decide(self, rows, memory):
        score = self.score(rows)
        chance = score.sigmoid()
        return Commits(chance > self.threshold, rows.real, chance, score)


@dataclass(frozen=True)
class Supervised:
    """Commits learned from labels that come with training calls (`boundary_targets`): ends of Unigram pieces.

    hidden: width of the predictor. legacy: the second sigmoid of the authors' loss. threshold: of the chance.
    """

    outermost_only: ClassVar[bool] = True  # labels are for tokens
    hidden: int = 2048
    legacy: bool = False
    threshold: float = 0.5

    def build(self, width: int, step: float) -> SupervisedRule:
        return SupervisedRule(width, self.hidden, self.threshold, self.legacy)


class SupervisedRule(Predictor):
    """The decision is the predictor's own, in training too, and the language loss does not reach it."""

    def __init__(self, width: int, hidden: int, threshold: float = 0.5, legacy: bool = False):
        super().__init__(width, hidden, threshold)
        self.legacy = legacy

    def loss(self, commits, labels=None):
        """Binary cross-entropy to the labels [B, T], mean over real rows, weight 1; None without labels."""
        if labels is None:
            return None
        logits = commits.chance if self.legacy else commits.score
        each = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
        return each[commits.real].mean()


@dataclass(frozen=True)
class Entropy(Supervised):
    """Commits learned from spikes of the model's own uncertainty about the next token.

    left: how many neighbours on the left a spike must exceed (2 as published).
    """

    left: int = 2

    def build(self, width: int, step: float) -> EntropyRule:
        if self.left < 1:
            raise ValueError(f"entropy: left is {self.left}; expected at least 1 neighbour")
        return EntropyRule(width, self.hidden, self.threshold, self.legacy, self.left)


class EntropyRule(SupervisedRule):
    def __init__(self, width: int, hidden: int, threshold: float = 0.5, legacy: bool = False, left: int = 2):
        super().__init__(width, hidden, threshold, legacy)
        self.left = left

    @torch.no_grad()
    def labels(self, logits: torch.Tensor) -> torch.Tensor:
        """True where the entropy of the next token exceeds that at each of `left` places before: [B, T, V] -> [B, T].

        Places near the start compare with what is there; the first is labelled True.
        """
        return spikes(torch.distributions.Categorical(logits=logits.detach()).entropy(), self.left)


def spikes(entropy: torch.Tensor, left: int) -> torch.Tensor:
    """Places [B, T] above each of their `left` neighbours on the left."""
    found = torch.ones_like(entropy, dtype=torch.bool)
    for away in range(1, left + 1):
        found[:, away:] &= entropy[:, away:] > entropy[:, :-away]
    return found


@dataclass(frozen=True)
class Gumbel:
    """Commits learned from the language loss through relaxed samples, with a binomial prior.

    rate: the prior's chance of a commit, 1 / shorten factor; 0 takes the plan's. temperature of the samples.
    legacy: samples at evaluation too, as in the authors' code; by default the chance is rounded, as in the paper.
    """

    hidden: int = 2048
    rate: float = 0.0
    temperature: float = 0.5
    legacy: bool = False
    threshold: float = 0.5

    def build(self, width: int, step: float) -> GumbelRule:
        rate = self.rate or 1 / step
        if not 0 < rate < 1:
            raise ValueError(f"gumbel: rate is {rate:g}; expected above 0 and below 1, such as 0.2 for a factor of 5")
        return GumbelRule(width, self.hidden, rate, self.temperature, self.threshold, self.legacy)


class GumbelRule(Predictor):
    def __init__(self, width, hidden: int, rate: float, temperature: float, threshold: float, legacy: bool = False):
        super().__init__(width, hidden, threshold)
        self.rate, self.temperature, self.legacy = rate, temperature, legacy

    def decide(self, rows, memory):
        if not (self.training or self.legacy):
            return super().decide(rows, memory)
        score = self.score(rows)
        noise = torch.empty_like(score).uniform_(1e-6, 1 - 1e-6).logit()
        soft = ((score + noise) / self.temperature).sigmoid()
        return Commits(soft > 0.5, rows.real, score.sigmoid(), score, straight_through(soft))

    def loss(self, commits, labels=None):
        """-log Binomial(commits; rows, rate) / rows, mean over the batch, weight 1."""
        bits = commits.bits if commits.soft is None else commits.soft
        total = commits.real.sum(1).clamp(min=1).to(commits.chance.dtype)
        count = (bits * commits.real).sum(1).to(total.dtype)
        return -(log_binomial(count, total, self.rate) / total).mean()


def straight_through(soft: torch.Tensor) -> torch.Tensor:
    """The rounded number with the gradient of the soft one."""
    return (soft > 0.5).to(soft.dtype) + soft - soft.detach()


def log_binomial(count: torch.Tensor, total: torch.Tensor, rate: float) -> torch.Tensor:
    """log P(count of total) at a rate, elementwise; differentiable by count."""
    ways = (total + 1).lgamma() - (count + 1).lgamma() - (total - count + 1).lgamma()
    return ways + count * math.log(rate) + (total - count) * math.log1p(-rate)
