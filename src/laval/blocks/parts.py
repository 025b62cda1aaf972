"""A decoder layer taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Map = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Parts:
    """Modules of one layer under the names of what they do; None where a family has none.

    h = x + output_norm(output(attention)), y = h + down_norm(down(activation(gate(u)) * up(u))), u = feed_norm(h);
    query_norm and key_norm work on each head before RoPE, which turns all of it.
    """

    norm: Map
    queries: Map
    keys: Map
    values: Map
    output: Map
    feed_norm: Map
    gate: Map
    up: Map
    down: Map
    activation: Map
    query_norm: Map | None = None
    key_norm: Map | None = None
    output_norm: Map | None = None
    down_norm: Map | None = None
