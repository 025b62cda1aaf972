"""The ablation without keys and values for skipped rows: a block whose keys say whether they may be read.

Each key carries one more channel, after RoPE: 0 if the row ran, far below zero if it skipped; each query reads that
channel with weight one. So the cache itself remembers who is visible, through reordering, cropping and windows.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch
from torch.nn import functional as F
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from laval.blocks.block import Block, Context
from laval.compat import update_cache

HIDDEN = -1e4  # added to a score: its softmax weight is exactly 0 in every dtype, and float16 still holds it


class HidingBlock:
    """The three steps of `block` where only the rows in `run` [B, T] leave keys and values that can be read.

    A row that runs always sees itself. ValueError for a paged cache (`generate_batch`): its keys have a fixed width.
    """

    def __init__(self, block: Block, run: torch.Tensor):
        self.block = copy(block)  # shares the layer; only its attention reads one channel more
        self.block.mix = self.mix
        self.mix_plain = block.mix
        self.index = block.index
        self.run = run

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.block.norm(x)

    def keys_values(self, z: torch.Tensor, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every row and their visibility: z [B, T, D] -> 2 x [B, Hkv, S, Dh + 1]."""
        keys, values = self.block.keys_values(z, replace(context, cache=None))
        hidden = torch.where(self.run, 0.0, HIDDEN / self.block.attention.scaling).to(keys.dtype)  # [B, T]
        hidden = hidden[:, None, :, None].expand(-1, keys.shape[1], -1, -1)
        keys, values = torch.cat((keys, hidden), dim=-1), F.pad(values, (0, 1))  # [B, Hkv, T, Dh + 1]
        if context.cache is None:
            return keys, values
        check_cache(context.cache)
        return update_cache(context.cache, keys, values, self.index, context.kwargs)

    def attend(self, z, kv, context: Context, rows: torch.Tensor | None = None) -> torch.Tensor:
        """As `Block.attend`, over the keys that may be read."""
        return self.block.attend(z, kv, context, rows)

    def feed_norm(self, h: torch.Tensor) -> torch.Tensor:
        return self.block.feed_norm(h)

    def feed_forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.block.feed_forward(u)

    def mix(self, queries: torch.Tensor, kv, context: Context) -> torch.Tensor:
        """Rotated queries [B, H, T, Dh] -> [B, T, H * Dh]."""
        mixed = self.mix_plain(F.pad(queries, (0, 1), value=1.0), kv, context)  # [B, T, H * (Dh + 1)]
        return mixed.unflatten(-1, (queries.shape[1], -1))[..., :-1].flatten(-2)


def check_hiding(config) -> None:
    """ValueError for a text config whose attention cannot hide a key by its score."""
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap is not None:
        raise ValueError(
            f"keep_kv is False, but this base has attn_logit_softcapping {cap}, which brings every score back into "
            "reach, so no key can be hidden; expected keep_kv=True, or a base without a soft-cap on attention"
        )


def check_cache(cache) -> None:
    if isinstance(cache, PagedAttentionCache):
        raise ValueError(
            "keep_kv is False and the cache is paged (generate_batch), with room for keys of the base's own width "
            "only; expected another cache: use generate"
        )
