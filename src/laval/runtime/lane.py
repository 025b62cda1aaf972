"""One decoder layer for one token of one sequence: the layer's own weights, used in the fewest operations.

Decoding alone, a token spends as long in small operations as in reading weights. Here views of the weights are made
once per generation, states are plain vectors [D], and nothing is asked twice. Equal to `Block` up to rounding.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from laval.blocks import Block
from laval.blocks.parts import Parts
from laval.ops import one_row
from laval.ops.one_row import rotate
from laval.runtime.buffers import GrowingLayer


class Lane:
    """The three steps of `block` for one row; ValueError where the family's arrangement is not the plain one."""

    maps = one_row  # what makes maps of modules

    def __init__(self, block: Block, dtype: torch.dtype, first: torch.Tensor | None = None):
        parts = block.parts()
        if parts is None or block.implementation != "sdpa":
            raise ValueError(f"layer {block.index} has no lane: {type(block).__name__} under {block.implementation}")
        map_of, norm_of = self.maps.map_of, self.maps.norm_of
        self.norm, self.feed_norm = norm_of(parts.norm, dtype), norm_of(parts.feed_norm, dtype)
        self.queries, self.output = map_of(parts.queries), map_of(parts.output)
        self.query_norm, self.key_norm = (norm_of(part, dtype) for part in (parts.query_norm, parts.key_norm))
        self.output_norm = norm_of(parts.output_norm, dtype)
        self.gate, self.up, self.down = (map_of(part) for part in (parts.gate, parts.up, parts.down))
        self.activation, self.down_norm = parts.activation, norm_of(parts.down_norm, dtype)
        self.width, self.scaling, self.index = block.attention.head_dim, block.attention.scaling, block.index
        self.group = block.attention.num_key_value_groups
        self.prepare(parts, first)

    def prepare(self, parts: Parts, first: torch.Tensor | None) -> None:
        self.readable = one_row.beside(parts.keys, parts.values, first)

    def __call__(self, x: torch.Tensor, turn, mask, cache) -> torch.Tensor:
        """The whole layer: x [D] -> [D]."""
        z = self.norm(x)
        kv, _ = self.keys_values(z, turn, cache)
        h = x + self.attend(z, kv, turn, mask)
        return h + self.feed_forward(self.feed_norm(h))

    def keys_values(self, z: torch.Tensor, turn, cache) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """This row's key and value appended to the cache, 2 x [1, Hkv, S, Dh], and the product of `first` with z."""
        key, value, e = self.readable(z)
        key, value = key.view(-1, self.width), value.view(-1, self.width)  # [Hkv, Dh]
        if self.key_norm is not None:
            key = self.key_norm(key)
        layer, key = cache.layers[self.index], rotate(key, *turn)
        if type(layer) is GrowingLayer:
            return layer.append_row(key, value), e
        return cache.update(key[None, :, None], value[None, :, None], self.index), e

    def attend(self, z: torch.Tensor, kv, turn, mask=None) -> torch.Tensor:
        """The attention branch's update, z [D] -> [D]; mask [1, 1, 1, S] or None."""
        query = self.queries(z).view(-1, self.width)  # [H, Dh]
        if self.query_norm is not None:
            query = self.query_norm(query)
        packed = rotate(query, *turn).view(1, kv[0].shape[1], -1, self.width)  # heads that share keys ask as rows
        mixed = F.scaled_dot_product_attention(packed, *kv, attn_mask=mask, scale=self.scaling)
        update = self.output(mixed.reshape(-1))
        return update if self.output_norm is None else self.output_norm(update)

    def feed_forward(self, u: torch.Tensor) -> torch.Tensor:
        """The feed-forward branch's update, u [D] -> [D]."""
        update = self.down(self.activation(self.gate(u)).mul_(self.up(u)))
        return update if self.down_norm is None else self.down_norm(update)
