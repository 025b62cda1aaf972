"""The small gated MLP that a skipping token takes instead of the feed-forward network."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops import one_row, some_rows
from laval.ops.one_row import Map
from laval.ops.rows import project


class Adapter(nn.Module):
    """u [..., D] -> update [..., D]: U (silu(G u) * D u), without bias; U starts at zero.

    Source: FlexiDepth (arXiv 2503.23798), whose checkpoint calls the map into the bottleneck `down_proj`.
    """

    def __init__(self, width: int, bottleneck: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, bottleneck, bias=False)
        self.down_proj = nn.Linear(width, bottleneck, bias=False)
        self.up_proj = nn.Linear(bottleneck, width, bias=False)
        nn.init.zeros_(self.up_proj.weight)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return project(self.up_proj, F.silu(project(self.gate_proj, u)) * project(self.down_proj, u))

    def single(self) -> Map:
        """The same for one row u [D], of the weights as they are now."""
        return self.made_by(one_row)

    def several(self) -> Map:
        """The same for a few rows u [R, D], of the weights as they are now."""
        return self.made_by(some_rows)

    def made_by(self, maps) -> Map:
        """With maps of one row or of some, both maps into the bottleneck as one."""
        if type(self.gate_proj) is not nn.Linear or type(self.down_proj) is not nn.Linear:
            return self
        up = maps.map_of(self.up_proj)
        both = maps.product_of(torch.cat((self.gate_proj.weight.detach(), self.down_proj.weight.detach())))

        def adapt(u: torch.Tensor) -> torch.Tensor:
            gate, inner = both(u).chunk(2, dim=-1)  # [..., bottleneck]
            return up(F.silu(gate).mul_(inner))

        return adapt


class NoAdapter(nn.Module):
    """The ablation: a skipping token is left as it is."""

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(u)

    def single(self) -> Map:
        return torch.zeros_like

    def several(self) -> Map:
        return torch.zeros_like
