"""Every difference between the supported transformers versions (5.20 to 5.24), and nothing else.

5.24 renamed the cache argument from `past_key_values` to `cache` in forwards, outputs and mask builders. Before that
the paged cache of `generate_batch` already travelled as `cache`, beside an empty `past_key_values`.
"""

from __future__ import annotations

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.modeling_outputs import CausalLMOutputWithPast

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""The name that forwards and outputs of the installed transformers give the cache."""


def pick_cache(cache=None, past_key_values=None):
    """The one cache a caller passed, under either name.

    ValueError if both names hold one.
    """
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values were both given; they are one argument: pass only `cache`")
    return past_key_values if cache is None else cache


def cache_argument(cache) -> dict:
    """The cache as the keyword argument that layers and models of the installed transformers expect."""
    return {"cache": cache} if isinstance(cache, PagedAttentionCache) else {CACHE: cache}


def output_field(cache) -> dict:
    """The cache as the field of a model output, which has one name only."""
    return {CACHE: cache}


def mask_argument(cache) -> dict:
    """The cache as the keyword argument of transformers' mask builders."""
    # A paged cache brings its own masks; before 5.24 the builders know only caches with lengths.
    hidden = isinstance(cache, PagedAttentionCache) and CACHE != "cache"
    return {CACHE: None if hidden else cache}


def update_cache(cache, keys, values, index: int, kwargs: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Append keys and values [B, Hkv, T, Dh] to layer `index`; returns all that queries may read [B, Hkv, S, Dh].

    A paged cache also rewrites `kwargs` in place: the attention call after it needs the same dict.
    """
    return cache.update(keys, values, index, kwargs=kwargs)


def output_cache(output):
    """The cache in a transformers model output, under either name."""
    return getattr(output, CACHE)


def keep_rows(x: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """Rows of x [B, T, D] that need logits: the last n (0: all), or those a tensor of positions or a mask names."""
    if isinstance(logits_to_keep, int):
        return x[:, -logits_to_keep:]
    if logits_to_keep.ndim == 1:
        return x[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return x[logits_to_keep]
    return torch.take_along_dim(x, logits_to_keep[..., None], dim=1)


def checkpointing_arguments() -> dict:
    """What turns on gradient checkpointing in TrainingArguments; 5.24 renamed it."""
    from transformers import TrainingArguments  # slow, and only training asks

    new = "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}
