"""Where a segment ends: one class per rule. A commit at t is decided from what is known at t."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from laval.shorten.memory import Memory
from laval.shorten.rows import Rows


@dataclass(frozen=True)
class Commits:
    """What a rule decided for rows [B, T]. bits: bool, a segment ends here (t included); False at filler.

    chance: probability of a commit, where the rule has one. score: its logit. soft: the commits as numbers whose
    gradient reaches the rule through the mean of a segment (None: no such path). real: bool, False at filler.
    own_loss: of a rule that has a model of its own.
    """

    bits: torch.Tensor
    real: torch.Tensor
    chance: torch.Tensor | None = None
    score: torch.Tensor | None = None
    soft: torch.Tensor | None = None
    own_loss: torch.Tensor | None = None

    def among(self, streams: int, busy: torch.Tensor) -> Commits:
        """These streams' commits at their numbers `busy` among so many, the others without rows."""
        found = {name: getattr(self, name) for name in ("bits", "real", "chance", "score", "soft")}
        return Commits(**{name: spread(tensor, streams, busy) for name, tensor in found.items()})


def spread(tensor: torch.Tensor | None, streams: int, busy: torch.Tensor) -> torch.Tensor | None:
    return tensor if tensor is None else tensor.new_zeros(streams, *tensor.shape[1:]).index_copy(0, busy, tensor)


class Rule(nn.Module):
    """Decides commits from the outer stack's rows. Subclasses define `decide`; learned ones `loss` as well."""

    learned = False

    def forward(self, rows: Rows, memory: Memory, given: torch.Tensor | None = None) -> Commits:
        """given [B, T]: commits decided elsewhere, to replay; numbers with a gradient get it (see `Commits.soft`)."""
        commits = self.decide(rows, memory)
        commits = commits if given is None else replay(commits, given)
        return replace(commits, bits=commits.bits & rows.real)

    def decide(self, rows: Rows, memory: Memory) -> Commits:
        raise TypeError(f"{type(self).__name__} does not say where segments end: define decide(rows, memory)")

    def cuts(self, commits: Commits) -> torch.Tensor | None:
        """What the rule compares with its `threshold`, [B, T]; None for a rule without one."""
        return None

    def margin(self, commits: Commits) -> torch.Tensor | None:
        """How far each decision is from tipping over, [B, T]; None for a rule without a threshold."""
        measured = self.cuts(commits)
        return None if measured is None else (measured - self.threshold).abs()

    def loss(self, commits: Commits, labels: torch.Tensor | None = None) -> torch.Tensor | None:
        """What training adds for this rule, as published; labels [B, T]: where segments should end. None: nothing."""
        return None


def replay(commits: Commits, given: torch.Tensor) -> Commits:
    """The same commits with other bits."""
    check_given(given, commits.bits)
    return replace(commits, bits=given > 0.5, soft=given if given.requires_grad else None)


def check_given(given: torch.Tensor, bits: torch.Tensor) -> None:
    if given.shape != bits.shape:
        raise ValueError(
            f"boundaries have the shape {list(given.shape)}; expected {list(bits.shape)}: batch, tokens of this call"
        )
    if given.is_floating_point() and not bool(((given >= 0) & (given <= 1)).all()):
        raise ValueError("boundaries hold NaN or numbers outside 0 to 1; expected 0 or 1 (or False, True) each")


@dataclass(frozen=True)
class Fixed:
    """A commit at rows 0, k, 2k, ... (Hourglass; dynamic pooling's fixed mode). factor: k; 0 takes the plan's.

    drop: factors to draw k from at each training step (shorten-factor dropout), for parts without parameters.
    """

    factor: int = 0
    drop: tuple[int, ...] = ()

    def __post_init__(self):
        for k in (self.factor, *(k or -1 for k in self.drop)):
            if k < 0:
                raise ValueError(f"fixed: factor {k}; expected a whole number, 1 or more")

    def build(self, width: int, step: float) -> FixedRule:
        factor = self.factor or step
        if factor != int(factor):
            raise ValueError(f"plan shortens by {factor:g} here, and a fixed rule needs a whole number; round it")
        return FixedRule(int(factor), self.drop)


class FixedRule(Rule):
    """`factor` may be set between texts. `drawn`: the one in force, another at each training step where some drop."""

    def __init__(self, factor: int, drop: tuple[int, ...] = ()):
        super().__init__()
        self.factor, self.drop, self.drawn = factor, drop, factor

    def decide(self, rows, memory):
        dropping = self.training and self.drop
        self.drawn = self.drop[int(torch.randint(len(self.drop), ()))] if dropping else self.factor
        return Commits(rows.places % self.drawn == 0, rows.real)


@dataclass(frozen=True)
class Tokens:
    """A commit at each token of a set: the boundary is after a space, so that it is known when the space is read.

    tokens: their ids. Dynamic pooling's whitespaces: the id of the space.
    """

    tokens: tuple[int, ...]

    def __post_init__(self):
        if not self.tokens or min(self.tokens) < 0:
            raise ValueError(
                f"tokens is {list(self.tokens)}; expected at least one token id, such as that of the space"
            )

    def build(self, width: int, step: float) -> TokensRule:
        return TokensRule(self.tokens)


class TokensRule(Rule):
    def __init__(self, tokens: tuple[int, ...]):
        super().__init__()
        self.tokens = tokens

    def decide(self, rows, memory):
        return Commits(torch.isin(rows.ids, torch.tensor(self.tokens, device=rows.ids.device)), rows.real)


@dataclass(frozen=True)
class Given:
    """Commits come with every call, as `boundaries`."""

    def build(self, width: int, step: float) -> GivenRule:
        return GivenRule()


class GivenRule(Rule):
    def forward(self, rows, memory, given=None):
        if given is None:
            raise ValueError("the rule is `given` and the call brings no boundaries; pass boundaries=[B, T]")
        return super().forward(rows, memory, given)

    def decide(self, rows, memory):
        return Commits(torch.zeros_like(rows.real), rows.real)
