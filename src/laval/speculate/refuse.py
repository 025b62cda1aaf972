"""What cannot be honoured without loss of exactness, refused by name."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicCache

ONE = ("num_beams", "num_return_sequences", "num_beam_groups")
OFF = ("return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states")
NONE = ("assistant_early_exit", "prompt_lookup_num_tokens", "penalty_alpha", "dola_layers", "guidance_scale")
DRAFTS = ("auto", "head", "skip", "exit", "lookup", "none")


def check_draft(draft: str) -> str:
    """ValueError for a draft that is not known."""
    if draft not in DRAFTS:
        raise ValueError(f"draft is {draft!r}; expected one of {', '.join(DRAFTS)}")
    return draft


def check_config(config) -> None:
    """ValueError for options of a GenerationConfig that lossless decoding has no exact way to follow."""
    for name in ONE:
        value = getattr(config, name, None)
        if value not in (None, 1):
            raise ValueError(f"{name} is {value}; expected 1, for lossless decoding follows one text: leave it out")
    for name in (*OFF, *NONE):
        value = getattr(config, name, None)
        if value not in (None, False) and not (name == "guidance_scale" and value == 1):
            raise ValueError(f"{name} is {value!r}, which lossless decoding does not support; leave it out")
    if config.use_cache is False:
        raise ValueError("use_cache is False; expected True, for verification reads on from the cache")


def check_inputs(ids: torch.Tensor, mask, cache, embeds=None) -> None:
    """ValueError unless there is one row of ids [1, T] without pads, and a cache that grows."""
    if ids.shape[0] != 1:
        raise ValueError(f"input_ids has {ids.shape[0]} rows; expected 1: lossless decoding takes one at a time")
    if ids.shape[1] == 0 or embeds is not None:
        raise ValueError("input_ids is empty or inputs_embeds is given; expected a prompt as token ids [1, T]")
    if mask is not None and not bool((mask == 1).all()):
        raise ValueError("attention_mask hides tokens; expected one prompt without pads, and no mask")
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        raise ValueError(
            f"the cache is a {type(cache).__name__}; expected transformers' plain DynamicCache: leave "
            "cache_implementation and past_key_values out"
        )
