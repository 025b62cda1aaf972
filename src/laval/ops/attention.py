"""Attention of chosen rows at the cost of those rows: sorted blocks, each reading only the keys in its reach.

One mask over all keys makes chosen rows pay for the future as well, and a fused causal kernel takes nothing but a
row for every key. Rows sorted by position, a block at a time, do without the future and stay on the fused kernel.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

BLOCK = 128
"""Rows of a block: more of them read more of the future for nothing, fewer fill the products of the kernel less."""


def causal_rows(queries, keys, values, tokens: torch.Tensor, scale: float) -> torch.Tensor:
    """Row r reads keys 0 to tokens[r]: queries [R, H, Dh], keys and values [Hkv, S, Dh], tokens [R] -> [R, H * Dh].

    tokens: int64, ascending. Heads that share keys are neighbours. For inference: no gradient is kept.
    """
    mixed, ends = torch.empty_like(queries), tokens.tolist()
    places = torch.arange(keys.shape[1], device=keys.device)
    for block in blocks(len(ends)):
        shared, reach = ends[block.start] + 1, ends[block.stop - 1] + 1
        bias = queries.new_zeros(block.stop - block.start, reach)  # only the last stretch of keys needs a mask
        bias[:, shared:].masked_fill_(places[shared:reach] > tokens[block, None], -math.inf)
        mixed[block] = attend(queries[block], keys[:, :reach], values[:, :reach], bias, scale)
    return mixed.flatten(1)


def masked_rows(queries, keys, values, visible: torch.Tensor, scale: float) -> torch.Tensor:
    """Row r reads the keys where visible[r], bool [R, S]; a row that sees none gets zeros. Shapes as `causal_rows`.

    Rows that see much the same keys should be neighbours: a block reads from its first visible key to its last.
    """
    mixed = torch.zeros_like(queries)
    for block in blocks(len(queries)):
        seen = visible[block].any(0).nonzero()
        if len(seen):
            reach = slice(int(seen[0]), int(seen[-1]) + 1)
            bias = queries.new_zeros(visible[block, reach].shape).masked_fill_(~visible[block, reach], -math.inf)
            mixed[block] = attend(queries[block], keys[:, reach], values[:, reach], bias, scale)
    return mixed.flatten(1)


def blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, rows, BLOCK)]


def attend(queries, keys, values, bias: torch.Tensor, scale: float) -> torch.Tensor:
    """queries [R, H, Dh] over all keys [Hkv, S, Dh] under an additive bias [R, S] -> [R, H, Dh].

    Heads that share keys ask as rows of one head, so that nobody repeats keys, and products have more rows.
    """
    groups = keys.shape[0]
    packed = queries.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)  # [Hkv, G, R, Dh]
    rows = packed.flatten(1, 2)[None]  # [1, Hkv, G * R, Dh]
    mask = bias.repeat(packed.shape[1], 1)  # [G * R, S]
    mixed = F.scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=mask, scale=scale)
    return mixed.view(packed.shape).permute(2, 0, 1, 3).flatten(1, 2)
