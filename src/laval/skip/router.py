"""The FlexiDepth router: one score per token from the layer's own normalised input."""

from __future__ import annotations

from collections.abc import Callable
from math import tanh
from operator import mul

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops.one_row import Map
from laval.ops.rows import linear, rms_norm
from laval.ops.some_rows import rms_norm_of

Narrow = tuple[torch.Tensor, Callable[[list[float]], float]]
"""A router in two parts: the weight [b, D] of its first map, and what makes a score of that map's few numbers."""

Wide = tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]
"""The same for rows: what makes scores [R] of the first map's numbers e [R, b]."""


class Router(nn.Module):
    """z [..., D] -> score [...], in float32 or better: g = sigmoid(score).

    score = W_r W_up tanh(RMSNorm(W_down z)) + b. The two maps after tanh have nothing between them, so they are
    applied as one vector. The bias is ours (published routers have none: it is then 0); it makes a new router start
    at "run". Source: FlexiDepth (arXiv 2503.23798), norm before tanh as in the released checkpoint.
    """

    def __init__(self, width: int, bottleneck: int, eps: float = 1e-5, start: float = 2.0):
        super().__init__()
        self.down = nn.Linear(width, bottleneck, bias=False)
        self.norm = nn.Parameter(torch.ones(bottleneck))
        self.up = nn.Linear(bottleneck, width, bias=False)
        self.head = nn.Linear(width, 1)
        self.eps = eps
        self.kept: tuple = (None, None)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, start)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        wide = wide_of(z)
        squeezed = self.squash(linear(z.to(wide), self.down.weight.to(wide)), self.normalise)  # [..., D/16]
        return (squeezed * self.folded(wide)).sum(-1) + self.head.bias.to(wide)

    def single(self) -> Narrow:
        """The same for one row, of the weights as they are now.

        The bottleneck is so narrow that plain numbers beat tensor operations.
        """
        with torch.no_grad():
            norm, vector = self.norm.tolist(), self.fold(wide_of(self.up.weight)).tolist()
            bias = float(self.head.bias)
        return self.down.weight.detach(), lambda e: self.score_of(e, norm, vector) + bias

    def several(self) -> Wide:
        """The same for a few rows, of the weights as they are now."""
        wide = wide_of(self.up.weight)
        with torch.no_grad():
            vector, bias = self.fold(wide), self.head.bias.to(wide)
            norm = rms_norm_of(self.norm.to(wide), self.eps)
        return self.down.weight.detach(), lambda e: torch.addmv(bias, self.squash(e.to(wide), norm), vector)

    def score_of(self, e: list[float], norm: list[float], vector: list[float]) -> float:
        """Vector times tanh(RMSNorm(e))."""
        scale = self.scale_of(e)
        return sum(v * tanh(scale * a * n) for a, n, v in zip(e, norm, vector, strict=True))

    def scale_of(self, e: list[float]) -> float:
        return (sum(map(mul, e, e)) / len(e) + self.eps) ** -0.5

    def folded(self, wide: torch.dtype) -> torch.Tensor:
        """W_r W_up, [D/16]; without gradients it is kept until a weight changes."""
        weights = (self.head.weight, self.up.weight)
        if torch.is_grad_enabled():
            return self.fold(wide)
        key = (wide, *map(mark, weights))
        if key != self.kept[0]:
            self.kept = (key, self.fold(wide))
        return self.kept[1]

    def fold(self, wide: torch.dtype) -> torch.Tensor:
        return (self.head.weight.to(wide) @ self.up.weight.to(wide)).squeeze(0)

    def squash(self, e: torch.Tensor, norm: Map) -> torch.Tensor:
        return torch.tanh(norm(e))

    def normalise(self, e: torch.Tensor) -> torch.Tensor:
        return rms_norm(e, self.norm.to(e.dtype), self.eps)


class TanhFirstRouter(Router):
    """The order of the paper's text: RMSNorm(tanh(W_down z))."""

    def squash(self, e: torch.Tensor, norm: Map) -> torch.Tensor:
        return norm(torch.tanh(e))

    def score_of(self, e: list[float], norm: list[float], vector: list[float]) -> float:
        """Vector times RMSNorm(tanh(e))."""
        e = list(map(tanh, e))
        return self.scale_of(e) * sum(a * n * v for a, n, v in zip(e, norm, vector, strict=True))


class LinearRouter(nn.Module):
    """The ablation: score = w z + b."""

    def __init__(self, width: int, bottleneck: int = 0, eps: float = 1e-5, start: float = 2.0):
        super().__init__()
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, start)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        wide = wide_of(z)
        return F.linear(z.to(wide), self.head.weight.to(wide), self.head.bias.to(wide)).squeeze(-1)

    def single(self) -> Narrow:
        """The same for one row, of the weights as they are now."""
        bias = float(self.head.bias)
        return self.head.weight.detach(), lambda e: e[0] + bias

    def several(self) -> Wide:
        """The same for a few rows, of the weights as they are now."""
        bias = self.head.bias.detach()
        return self.head.weight.detach(), lambda e: (e + bias).view(-1)


def wide_of(z: torch.Tensor) -> torch.dtype:
    """float32 or better: decisions near the threshold flip in half precision."""
    return z.dtype if z.dtype == torch.float64 else torch.float32


def mark(weight: torch.Tensor) -> tuple:
    """Changes when the weight does."""
    return weight.data_ptr(), weight.dtype, None if weight.is_inference() else weight._version


ROUTERS = {"norm_tanh": Router, "tanh_norm": TanhFirstRouter, "linear": LinearRouter}
