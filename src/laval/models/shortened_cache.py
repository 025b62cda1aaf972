"""The cache of a shortened model: what its levels remember, in the shape that transformers asks for."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from laval.shorten import Memory


class Streams(CacheLayerMixin):
    """All levels' memory as one layer; its length counts tokens, pads included."""

    is_sliding = is_compileable = is_croppable = False

    def __init__(self):
        super().__init__()
        self.memory, self.length = Memory(), 0

    def lazy_initialization(self, key_states, value_states=None) -> None:
        """Nothing: a memory grows as it is used."""

    def update(self, key_states, value_states, *arguments, **options):
        raise ValueError(
            "this cache belongs to a shortened model, whose levels write it themselves; use it there only"
        )

    def get_mask_sizes(self, query_length) -> tuple[int, int]:
        return self.length + int(query_length), 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        self.memory, self.length = Memory(), 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.memory.change(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.memory.change(lambda tensor: tensor.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.memory.change(lambda tensor: tensor[indices])


class ShortenedCache(Cache):
    """K and V of every stack, the open segment's sum and count, the last row upsampled, the router's last vector."""

    def __init__(self):
        super().__init__(layers=[Streams()])

    @property
    def memory(self) -> Memory:
        return self.layers[0].memory

    def seen(self, tokens: int) -> None:
        """Count the tokens of a call."""
        self.layers[0].length += tokens


def as_shortened(cache) -> ShortenedCache:
    """The cache itself, or one for an empty cache of another kind. ValueError for one that holds something."""
    if isinstance(cache, ShortenedCache):
        return cache
    if cache is None or not cache.get_seq_length():
        return ShortenedCache()
    raise ValueError(
        f"cache is a {type(cache).__name__} that holds tokens; a shortened model reads only its own: pass the cache "
        "of its last output, or none"
    )
