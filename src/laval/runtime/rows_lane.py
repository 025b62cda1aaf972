"""One decoder layer for a few tokens of one sequence: what `Lane` is for one, with rows [T, D] for states."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from laval.blocks.parts import Parts
from laval.ops import some_rows
from laval.ops.one_row import rotate
from laval.runtime.lane import Lane


class RowsLane(Lane):
    """The three steps of `block` for T rows; ValueError where the family's arrangement is not the plain one.

    turn: cos and sin [T, Dh]; mask [1, 1, G * T, S]: rows for each of the G heads that share keys.
    """

    maps = some_rows

    def prepare(self, parts: Parts, first: torch.Tensor | None) -> None:
        self.keys, self.values = some_rows.map_of(parts.keys), some_rows.map_of(parts.values)

    def __call__(self, x: torch.Tensor, turn, mask, cache) -> torch.Tensor:
        """The whole layer: x [T, D] -> [T, D]."""
        z = self.norm(x)
        h = x + self.attend(z, self.keys_values(z, turn, cache), turn, mask)
        return h + self.feed_forward(self.feed_norm(h))

    def keys_values(self, z: torch.Tensor, turn, cache) -> tuple[torch.Tensor, torch.Tensor]:
        """These rows' keys and values appended to the cache, z [T, D] -> 2 x [1, Hkv, S, Dh]."""
        key, value = self.heads(self.keys(z)), self.heads(self.values(z))  # [Hkv, T, Dh]
        if self.key_norm is not None:
            key = self.key_norm(key)
        return cache.update(rotate(key, *turn)[None], value[None], self.index)

    def attend(self, z: torch.Tensor, kv, turn, mask: torch.Tensor) -> torch.Tensor:
        """The attention branch's update, z [T, D] -> [T, D]."""
        query = self.heads(self.queries(z))  # [H, T, Dh]
        if self.query_norm is not None:
            query = self.query_norm(query)
        query = rotate(query, *turn)
        packed = query.view(1, kv[0].shape[1], -1, self.width)  # heads that share keys ask as rows
        mixed = F.scaled_dot_product_attention(packed, *kv, attn_mask=mask, scale=self.scaling)
        update = self.output(mixed.reshape(query.shape).transpose(0, 1).flatten(1))  # [T, D]
        return update if self.output_norm is None else self.output_norm(update)

    def heads(self, projected: torch.Tensor) -> torch.Tensor:
        """[T, H * Dh] -> [H, T, Dh], each head's rows side by side."""
        return projected.unflatten(-1, (-1, self.width)).transpose(0, 1).contiguous()
