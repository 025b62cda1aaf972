"""The layer of Hourglass and dynamic pooling: Transformer-XL relative attention, LayerNorm, GELU.

Sources: arXiv 2110.13711 (norms first, tanh GELU), arXiv 2211.09761 (norms last, GELU), arXiv 1901.02860 (attention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from laval.blocks.reach import Reach
from laval.ops.relative import relative_attention, sinusoids


@dataclass(frozen=True)
class Paper:
    """Sizes of the published layers. norm: first (Hourglass) or last (dynamic pooling) in each branch.

    head_width: by default width / heads.
    """

    width: int = 512
    feed_forward: int = 2048
    heads: int = 8
    head_width: int | None = None
    norm: Literal["first", "last"] = "last"
    dropout: float = 0.0

    def __post_init__(self):
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"width {self.width} does not divide into {self.heads} heads; give head_width, or change one"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; expected a number from 0 to below 1")

    @property
    def head(self) -> int:
        return self.head_width or self.width // self.heads


class Distances:
    """What distances stand for in one call, `spacing` apart, and the two biases [H, Dh] of all layers."""

    def __init__(self, reach: Reach, spacing: int, shared: Distance):
        self.reach, self.spacing, self.shared = reach, spacing, shared
        self.biases = shared.content, shared.position
        self.sines: dict[tuple[int, int], torch.Tensor] = {}

    def table(self, layer, project: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The distances that this call needs, as one layer projects them: [H, N, Dh]. Memories keep what they have."""
        return self.reach.table(layer, lambda start, stop: project(self.sinusoids(start, stop)))

    def sinusoids(self, start: int, stop: int) -> torch.Tensor:
        """The same ones, dropout and all, for every layer of the call."""
        if (start, stop) not in self.sines:
            self.sines[start, stop] = self.shared.sinusoids(start, stop, self.spacing)
        return self.sines[start, stop]


class Distance(nn.Module):
    """The content and position biases that every layer, level and resampling attention of a model shares."""

    def __init__(self, paper: Paper):
        super().__init__()
        self.width = paper.width
        self.content = nn.Parameter(torch.zeros(paper.heads, paper.head))
        self.position = nn.Parameter(torch.zeros(paper.heads, paper.head))
        self.drop = nn.Dropout(paper.dropout)
        nn.init.normal_(self.content, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, reach: Reach, spacing: int) -> Distances:
        """spacing: how far apart neighbouring rows are."""
        return Distances(reach, spacing, self)

    def sinusoids(self, start: int, stop: int, spacing: int) -> torch.Tensor:
        """Sinusoids of `start` to `stop` rows' distance: [stop - start, D]."""
        away = torch.arange(start, stop, device=self.content.device) * spacing
        return self.drop(sinusoids(away, self.width, self.content.dtype))


class RelativeAttention(nn.Module):
    """Attention of rows [B, Q, D] over keys and values [B, S, D], with biases in every map."""

    def __init__(self, paper: Paper):
        super().__init__()
        inner = paper.heads * paper.head
        self.heads, self.dropout = paper.heads, paper.dropout
        self.queries = nn.Linear(paper.width, inner)
        self.keys = nn.Linear(paper.width, inner)
        self.values = nn.Linear(paper.width, inner)
        self.distances = nn.Linear(paper.width, inner)
        self.output = nn.Linear(inner, paper.width)

    def forward(self, asking, readable, reach: Reach, distances: Distances, layer=0) -> torch.Tensor:
        queries, keys, values = (
            self.split(map_(x)) for map_, x in ((self.queries, asking), (self.keys, readable), (self.values, readable))
        )
        keys, values = reach.extend(layer, keys, values)
        table = distances.table(layer, lambda x: self.split(self.distances(x)))
        dropout = self.dropout if self.training else 0.0
        mixed = relative_attention(queries, keys, values, table, distances.biases, reach.distance, dropout)
        return self.output(mixed.transpose(1, 2).flatten(2))  # [B, Q, D]

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # [..., H, T, Dh]


class FeedForward(nn.Module):
    """Linear, GELU, Linear: u [..., D] -> [..., D]."""

    def __init__(self, paper: Paper):
        super().__init__()
        self.up = nn.Linear(paper.width, paper.feed_forward)
        self.gelu = nn.GELU(approximate="tanh" if paper.norm == "first" else "none")
        self.down = nn.Linear(paper.feed_forward, paper.width)
        self.drop = nn.Dropout(paper.dropout)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.drop(self.gelu(self.up(u)))))


class PaperLayer(GradientCheckpointingLayer):
    """What both arrangements have: attention, feed-forward, two norms."""

    def __init__(self, paper: Paper):
        super().__init__()
        self.attention = RelativeAttention(paper)
        self.attention_norm = nn.LayerNorm(paper.width)
        self.feed_forward = FeedForward(paper)
        self.feed_norm = nn.LayerNorm(paper.width)
        self.drop = nn.Dropout(paper.dropout)


class NormFirst(PaperLayer):
    """x + attention(norm(x)), then x + feed_forward(norm(x)), as in Hourglass."""

    def forward(self, x: torch.Tensor, reach: Reach, distances: Distances, layer=0) -> torch.Tensor:
        z = self.attention_norm(x)
        h = x + self.drop(self.attention(z, z, reach, distances, layer))
        return h + self.feed_forward(self.feed_norm(h))


class NormLast(PaperLayer):
    """norm(x + attention(x)), then norm(x + feed_forward(x)), as in dynamic pooling."""

    def forward(self, x: torch.Tensor, reach: Reach, distances: Distances, layer=0) -> torch.Tensor:
        h = self.attention_norm(x + self.drop(self.attention(x, x, reach, distances, layer)))
        return self.feed_norm(h + self.feed_forward(h))


class Resample(nn.Module):
    """Rows that read rows of another resolution, as Hourglass does: the caller has normed both."""

    def __init__(self, paper: Paper):
        super().__init__()
        self.attention = RelativeAttention(paper)
        self.feed_forward = FeedForward(paper)
        self.feed_norm = nn.LayerNorm(paper.width)
        self.drop = nn.Dropout(paper.dropout)

    def forward(self, asking, readable, reach: Reach, distances: Distances) -> torch.Tensor:
        """asking [B, Q, D], readable [B, S, D] -> [B, Q, D]."""
        h = asking + self.drop(self.attention(asking, readable, reach, distances))
        return h + self.feed_forward(self.feed_norm(h))


LAYERS = {"first": NormFirst, "last": NormLast}


def draw(module: nn.Module) -> None:
    """Start as dynamic pooling does: maps and embeddings N(0, .02), norms N(1, .02), biases zero."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.LayerNorm):
            nn.init.normal_(part.weight, mean=1.0, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
