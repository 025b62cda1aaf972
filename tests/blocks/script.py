"""The calls every parity test makes: a left-padded prompt longer than the window, a step, a chunk."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from laval.compat import cache_argument
from tests.tiny import FAMILIES, implementations

CASES = [(family, implementation) for family in FAMILIES for implementation in implementations(family)]
PIECES = [slice(0, 9), slice(9, 10), slice(10, 14)]


def prompt(padded: bool, batch: int = 2, length: int = 14) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token ids [B, T] and their mask; padded: the first sequence lacks its first four tokens."""
    ids = torch.randint(3, 128, (batch, length), generator=torch.Generator().manual_seed(1))
    if not padded:
        return ids, None
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return ids, mask


def calls(ids, mask, cached: bool):
    """(ids, mask, position_ids) of each forward: three pieces over a cache, or everything at once."""
    positions = torch.arange(ids.shape[1])[None] if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    for piece in PIECES if cached else [slice(0, ids.shape[1])]:
        yield ids[:, piece], None if mask is None else mask[:, : piece.stop], positions[:, piece]


def new_cache(model, cached: bool):
    return DynamicCache(config=model.config) if cached else None


def stock(model, ids, mask, position_ids, cache) -> torch.Tensor:
    """The transformers model's own logits."""
    kwargs = {"attention_mask": mask, "position_ids": position_ids, "use_cache": cache is not None}
    return model(input_ids=ids, **kwargs, **cache_argument(cache)).logits


def through_blocks(backbone, way: str, ids, mask, position_ids, cache) -> torch.Tensor:
    """The same logits from the backbone's steps; way: the block method that runs a layer."""
    x = backbone.embed(ids)
    for block, context in zip(backbone.blocks, backbone.contexts(x, mask, position_ids, cache), strict=True):
        x = getattr(block, way)(x, context)
    return backbone.head(x)
