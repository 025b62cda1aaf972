"""Rows back to tokens: one class per way. A token reads the last row committed, its own commit included."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from laval.blocks.reach import FREE
from laval.ops import upsample
from laval.ops.reduce import wide
from laval.ops.segments import Segments, lead, pick
from laval.shorten.commit import Commits
from laval.shorten.memory import Memory
from laval.shorten.rows import Rows


@dataclass(frozen=True)
class Reading:
    """What the tokens of one call may read: the inner stack's new rows, `starts` of them before any commit."""

    tokens: Rows
    commits: Commits
    segments: Segments
    inner: Rows
    starts: int

    @property
    def index(self) -> torch.Tensor:
        """The row that each token reads, 0 for the one before this call: int64 [B, T]."""
        return self.segments.closed + self.starts

    @property
    def places(self) -> torch.Tensor:
        """Place of the token that each new row was committed at, -1 for a start row: int64 [B, S]."""
        ends = self.segments.ends + self.tokens.first[:, None]
        found = lead(ends, self.starts, value=-1) if self.starts else ends
        return F.pad(found, (0, self.inner.x.shape[1] - found.shape[1]), value=FREE)

    def shares(self) -> torch.Tensor:
        """The chance with which each new row was committed, 1 for a start row or a rule without: [B, S]."""
        chance = self.commits.chance
        if chance is None:
            return self.inner.x.new_ones(self.inner.x.shape[:2])
        found = pick(chance, self.segments.ends)
        found = lead(found, self.starts, value=1) if self.starts else found
        return F.pad(found, (0, self.inner.x.shape[1] - found.shape[1]), value=1)


class Upsample(nn.Module):
    """The inner stack's rows at the tokens' places: [B, T, D]. Zeros where nothing has been committed yet."""

    def forward(self, reading: Reading, memory: Memory) -> torch.Tensor:
        raise TypeError(f"{type(self).__name__} does not say how: define forward(reading, memory)")


def with_kept(new: torch.Tensor, inner: Rows, memory: Memory, back: int = 1) -> torch.Tensor:
    """The last `back` rows of earlier calls in front of the new: [B, S, N] -> [B, back + S, N]."""
    kept = memory.recall("rows", inner.batch)
    behind = lead(new, back) if kept is None else torch.cat((kept, new), 1)
    last = inner.lengths[:, None] + torch.arange(back, device=new.device)
    memory.keep("rows", pick(behind, last), inner.batch)
    return behind


def positions(reading: Reading, memory: Memory) -> torch.Tensor:
    """Tokens since the last commit: int64 [B, T]."""
    tokens = reading.tokens
    kept = memory.recall("since", tokens.batch)
    kept = torch.full_like(tokens.first, -1) if kept is None else kept
    found = upsample.since(reading.commits.bits, kept)
    memory.keep("since", pick(torch.cat((kept[:, None], found), 1), tokens.lengths[:, None])[:, 0], tokens.batch)
    return found


class Repeat(Upsample):
    """Every token gets the row as it is."""

    def forward(self, reading, memory):
        return upsample.repeat(with_kept(reading.inner.x, reading.inner, memory), reading.index)


class Linear(Upsample):
    """A map of its own for each place behind the commit."""

    def __init__(self, width: int, places: int):
        super().__init__()
        self.places = places
        self.map = nn.Linear(width, places * width)

    def forward(self, reading, memory):
        projected = with_kept(self.map(reading.inner.x), reading.inner, memory).unflatten(-1, (self.places, -1))
        return upsample.by_position(projected, reading.index, positions(reading, memory))


class Transposed(Upsample):
    """As `Linear`, with a second map of the row before: a transposed convolution, kernel 2k and stride k."""

    def __init__(self, width: int, places: int):
        super().__init__()
        self.places = places
        self.map = nn.Linear(width, places * width)
        self.before = nn.Linear(width, places * width, bias=False)

    def forward(self, reading, memory):
        both = torch.stack((self.map(reading.inner.x), self.before(reading.inner.x)), -2).flatten(2)
        both = with_kept(both, reading.inner, memory, back=2).unflatten(-1, (2, self.places, -1))
        now, place = reading.index + 1, positions(reading, memory)
        return upsample.by_position(both[:, :, 0], now, place) + upsample.by_position(both[:, :, 1], now - 1, place)


class Smooth(Upsample):
    """Repeats rows smoothed by the chance of their commit, times 1 with the gradient of the decision (H-Net)."""

    def forward(self, reading, memory):
        inner, x = reading.inner, wide(reading.inner.x)
        kept = memory.recall("rows", inner.batch)
        before = x.new_zeros(len(x), x.shape[-1]) if kept is None else kept[:, 0]
        smoothed = upsample.smooth(x, reading.shares().to(x.dtype), before)
        found = upsample.repeat(with_kept(smoothed, inner, memory), reading.index)
        return found.to(inner.x.dtype) * self.sure(reading)

    def sure(self, reading: Reading) -> torch.Tensor | float:
        """One, with the gradient of the chance of what was decided: [B, T, 1]."""
        chance = reading.commits.chance
        if chance is None:
            return 1.0
        taken = torch.where(reading.commits.bits, chance, 1 - chance)
        return (1 + taken - taken.detach()).to(reading.inner.x.dtype)[..., None]


class Attention(Upsample):
    """Each token asks all rows committed so far (Hourglass, attention upsampling).

    y = norm(rows); q = norm(upsample(y)) + x; q + attention(q, y), then a feed-forward branch. Without a base,
    upsample(y) is zero.
    """

    def __init__(self, kind, base: Upsample | None):
        super().__init__()
        self.norm, self.query_norm = kind.norm(), kind.norm()
        self.base = base
        self.resample = kind.resample()

    def forward(self, reading, memory):
        x, inner = reading.tokens.x, reading.inner
        normed = replace(reading, inner=inner.having(self.norm(inner.x)))
        guess = torch.zeros_like(x) if self.base is None else self.base(normed, memory.part("base"))
        reach = memory.reach(inner, asking=reading.tokens.places, places=reading.places)
        # published code counts distances here in rows of the tokens' level, whatever those stand for
        return self.resample(self.query_norm(guess) + x, normed.inner.x, reach, 1)


def build_upsample(name: str, kind, places: int) -> Upsample:
    """The class of a name; places: for how many tokens there are maps."""
    made = {
        "repeat": Repeat,
        "linear": lambda: Linear(kind.width, places),
        "transposed": lambda: Transposed(kind.width, places),
        "smooth": Smooth,
        "attention": lambda: Attention(kind, None),
        "attention_repeat": lambda: Attention(kind, Repeat()),
        "attention_linear": lambda: Attention(kind, Linear(kind.width, places)),
    }
    return made[name]()
