"""The FlexiDepth router: one score per token from the layer's own normalised input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops.one_row import Map
from laval.ops.rows import linear, one_row_rms_norm, rms_norm


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

    def single(self) -> Callable[[torch.Tensor], float]:
        """The same for one row z [D]; of the weights as they are now."""
        wide, eps = wide_of(self.down.weight), self.eps
        with torch.no_grad():
            down, norm, vector = self.down.weight.to(wide), self.norm.to(wide), self.fold(wide)
            bias = float(self.head.bias)

        def normalise(e: torch.Tensor) -> torch.Tensor:
            return one_row_rms_norm(e, norm, eps)

        return lambda z: float(self.squash(down.mv(z.to(wide)), normalise).dot(vector)) + bias

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

    def squash(self, e: torch.Tensor, normalise: Map) -> torch.Tensor:
        return torch.tanh(normalise(e))

    def normalise(self, e: torch.Tensor) -> torch.Tensor:
        return rms_norm(e, self.norm.to(e.dtype), self.eps)


class TanhFirstRouter(Router):
    """The order of the paper's text: RMSNorm(tanh(W_down z))."""

    def squash(self, e: torch.Tensor, normalise: Map) -> torch.Tensor:
        return normalise(torch.tanh(e))


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

    def single(self) -> Callable[[torch.Tensor], float]:
        """The same for one row z [D]; of the weights as they are now."""
        wide = wide_of(self.head.weight)
        vector, bias = self.head.weight.detach().to(wide).squeeze(0), float(self.head.bias)
        return lambda z: float(vector.dot(z.to(wide))) + bias


def wide_of(z: torch.Tensor) -> torch.dtype:
    """float32 or better: decisions near the threshold flip in half precision."""
    return z.dtype if z.dtype == torch.float64 else torch.float32


def mark(weight: torch.Tensor) -> tuple:
    """Changes when the weight does."""
    return weight.data_ptr(), weight.dtype, None if weight.is_inference() else weight._version


ROUTERS = {"norm_tanh": Router, "tanh_norm": TanhFirstRouter, "linear": LinearRouter}
