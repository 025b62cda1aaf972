"""Keys and values in buffers with room to spare: a new token is written in place instead of copying all before it."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

SPARE = 256
"""Tokens of room at least whenever a buffer is made; a long one gets half its length."""


class GrowingLayer(DynamicLayer):
    """A dynamic cache layer whose keys and values [B, Hkv, S, Dh] are the filled part of larger buffers.

    Whatever replaces or crops `keys` and `values` (beams, batches, speculation) needs to know nothing of that.
    """

    def __init__(self, spare: int = SPARE):
        super().__init__()
        self.spare = spare
        self.buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self.own: torch.Tensor | None = None  # the keys as this layer left them

    def update(self, key_states, value_states, *args, **kwargs):
        """Append keys and values [B, Hkv, T, Dh]; returns all of them. Gradients keep to transformers' own way."""
        if key_states.requires_grad or value_states.requires_grad:
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        seen = self.get_seq_length()
        total = seen + key_states.shape[-2]
        if not self.has_room(total):
            self.make_room(key_states, value_states, seen, total)
        self.keys, self.values = (
            append(buffer, new, seen, total)
            for buffer, new in zip(self.buffers, (key_states, value_states), strict=True)
        )
        self.own = self.keys
        return self.keys, self.values

    def append_row(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`update` for one token of one sequence, key and value [Hkv, Dh], with fewer operations."""
        seen = 0 if self.own is None else self.own.shape[2]
        # also when something else was done to the cache since the last row
        if self.own is None or self.keys is not self.own or seen == self.buffers[0].shape[2]:
            return self.update(key[None, :, None], value[None, :, None])
        (keys, values), total = self.buffers, seen + 1
        keys[0].select(1, seen).copy_(key)
        values[0].select(1, seen).copy_(value)
        self.keys = self.own = keys.narrow(2, 0, total)
        self.values = values.narrow(2, 0, total)
        return self.keys, self.values

    def append_rows(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`append_row` for one token of each of B sequences, keys and values [B, Hkv, Dh]."""
        seen = 0 if self.own is None else self.own.shape[2]
        if self.own is None or self.keys is not self.own or seen == self.buffers[0].shape[2]:
            return self.update(keys[:, :, None], values[:, :, None])
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer.select(2, seen).copy_(new)
        self.keys, self.values = (buffer.narrow(2, 0, seen + 1) for buffer in self.buffers)
        self.own = self.keys
        return self.keys, self.values

    def reset(self) -> None:
        super().reset()
        self.buffers = self.own = None

    def has_room(self, total: int) -> bool:
        """Whether keys and values still lie in the buffers, and `total` tokens fit."""
        return self.buffers is not None and all(
            kept.data_ptr() == buffer.data_ptr() and len(kept) == len(buffer) and total <= buffer.shape[2]
            for kept, buffer in zip((self.keys, self.values), self.buffers, strict=True)
        )

    def make_room(self, key_states, value_states, seen: int, total: int) -> None:
        length = total + max(self.spare, total // 2)
        with torch.inference_mode(False):  # lanes make room too, and what they leave behind others must write into
            self.buffers = tuple(
                torch.empty(*new.shape[:2], length, new.shape[3], dtype=new.dtype, device=new.device)
                for new in (key_states, value_states)
            )
        if seen:
            for buffer, kept in zip(self.buffers, (self.keys, self.values), strict=True):
                buffer[:, :, :seen] = kept


def append(buffer: torch.Tensor, new: torch.Tensor, seen: int, total: int) -> torch.Tensor:
    buffer[:, :, seen:total] = new
    return buffer[:, :, :total]


def give_room(cache) -> None:
    """Let an empty cache of transformers' default kind grow in place; any other cache stays as it is."""
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        return
    if getattr(cache, "layer_class_to_replicate", None) is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = GrowingLayer()
