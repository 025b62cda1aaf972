"""What rows may see, in the form that lanes add to scores; made once for all layers that share it."""

from __future__ import annotations

import torch


def rows_masks(contexts, x: torch.Tensor, group: int) -> list[torch.Tensor]:
    """What rows x [T, D] may see, for each layer, added to scores: [1, 1, G * T, S] for G heads that share keys."""
    made: dict[int, torch.Tensor] = {}
    for mask in (context.mask for context in contexts):
        if id(mask) not in made:
            made[id(mask)] = added(causal(x) if mask is None else mask, x.dtype).repeat(1, 1, group, 1)
    return [made[id(context.mask)] for context in contexts]


def batch_masks(contexts, x: torch.Tensor) -> list[torch.Tensor | None]:
    """What one token of each sequence, x [B, D], may see, for each layer: [B or 1, 1, 1, S], or None for all."""
    made: dict[int, torch.Tensor | None] = {}
    for mask in (context.mask for context in contexts):
        if id(mask) not in made:
            made[id(mask)] = None if mask is None else added(mask, x.dtype)
    return [made[id(context.mask)] for context in contexts]


def causal(x: torch.Tensor) -> torch.Tensor:
    """What no mask means to transformers for several rows x [T, D]: a start, each row seeing those before it."""
    return torch.ones(1, 1, len(x), len(x), dtype=torch.bool).tril()


def added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask that tells what to see as one to be added, made once instead of in every layer."""
    return mask if mask.dtype != torch.bool else torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)
