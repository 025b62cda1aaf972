"""One decoder layer for a token of each of several sequences: what `Lane` is for one, with rows [B, D] for states."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from laval.blocks.parts import Parts
from laval.ops import some_rows
from laval.ops.one_row import rotate
from laval.runtime.buffers import GrowingLayer
from laval.runtime.lane import Lane


class BatchLane(Lane):
    """The three steps of `block` for B rows; ValueError where the family's arrangement is not the plain one.

    turn: cos and sin [B or 1, 1, Dh]; mask [B or 1, 1, 1, S], added to scores, or None.
    """

    maps = some_rows

    def prepare(self, parts: Parts, first: torch.Tensor | None) -> None:
        self.readable = some_rows.beside(parts.keys, parts.values, first)

    def keys_values(self, z: torch.Tensor, turn, cache) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Each row's key and value appended to the cache, 2 x [B, Hkv, S, Dh], and the product of `first` with z."""
        key, value, e = self.readable(z)
        key, value = self.heads(key), self.heads(value)  # [B, Hkv, Dh]
        if self.key_norm is not None:
            key = self.key_norm(key)
        layer, key = cache.layers[self.index], rotate(key, *turn)
        if type(layer) is GrowingLayer:
            return layer.append_rows(key, value), e
        return cache.update(key[:, :, None], value[:, :, None], self.index), e

    def attend(self, z: torch.Tensor, kv, turn, mask=None) -> torch.Tensor:
        """The attention branch's update, z [B, D] -> [B, D]."""
        query = self.heads(self.queries(z))  # [B, H, Dh]
        if self.query_norm is not None:
            query = self.query_norm(query)
        packed = rotate(query, *turn).view(len(z), kv[0].shape[1], -1, self.width)  # heads that share keys ask as rows
        mixed = F.scaled_dot_product_attention(packed, *kv, attn_mask=mask, scale=self.scaling)
        update = self.output(mixed.reshape(len(z), -1))
        return update if self.output_norm is None else self.output_norm(update)

    def heads(self, projected: torch.Tensor) -> torch.Tensor:
        """[B, H * Dh] -> [B, H, Dh], row by row in memory."""
        return projected.contiguous().view(len(projected), -1, self.width)
