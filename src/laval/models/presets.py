"""Published configurations under their published names: `preset("dpt-text8-gumbel")`.

Sizes: those of Hourglass's ablations on enwik8 come out when resampling is attention around means, without linear
maps at either end; dynamic pooling has 41M, and 1M more with a predictor. Hourglass's main enwik8 model is published
as 4@1 8@3 4@1 with 146M, which do not go together: that plan has 138.6M, and one layer more 146.3M. The plan is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from laval.models.shortened_config import ShortenedConfig

BYTES, IMAGE, TEXT8 = 256, 256, 27
SPACE = 0  # text8's vocabulary sorted by frequency
ATTENTION = {"reduce": "attention", "upsample": "attention", "start": "zeros", "distance": "tokens"}


def hourglass(plan: str, width: int, dropout: float, vocabulary: int = BYTES, **level) -> ShortenedConfig:
    """Hourglass (arXiv 2110.13711): norms first, zeros in front, distances in tokens, attention resampling.

    The input's shift by one is the caller's: let every sequence begin with id 0.
    """
    paper = {"width": width, "feed_forward": 4 * width, "heads": 8, "norm": "first", "dropout": dropout}
    return ShortenedConfig(plan, {"rule": {"name": "fixed"}, **ATTENTION, **level}, paper, vocab_size=vocabulary)


def dynamic_pooling(rule: dict | None, factor: float = 5) -> ShortenedConfig:
    """Dynamic pooling on text8 (arXiv 2211.09761): norms last, learned null row, means, repeats."""
    paper = {"width": 512, "feed_forward": 2048, "heads": 8, "norm": "last", "dropout": 0.1}
    if rule is None:
        return ShortenedConfig("12@1", (), paper, vocab_size=TEXT8)
    return ShortenedConfig(f"2@1 8@{factor:g} 2@1", {"rule": rule}, paper, vocab_size=TEXT8)


def hnet_small() -> ShortenedConfig:
    """One stage of H-Net (arXiv 2507.07955) at a size of ours: its outer stages are Mamba-2 layers, these Llama's."""
    text = {
        "model_type": "llama",
        "vocab_size": BYTES,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    level = {
        "rule": {"name": "cosine"},
        "reduce": "last",
        "upsample": "smooth",
        "start": "forced",
        "skip": "linear",
    }
    return ShortenedConfig("4@1 8@6 4@1", level, text_config=text)


PRESETS: dict[str, Callable[[], ShortenedConfig]] = {
    "hourglass-enwik8": lambda: hourglass("4@1 8@3 4@1", 768, 0.15),
    "hourglass-imagenet32": lambda: hourglass("3@1 24@3 3@1", 512, 0.01, IMAGE, reduce="attention_linear"),
    "dpt-text8-vanilla": lambda: dynamic_pooling(None),
    "dpt-text8-fixed2": lambda: dynamic_pooling({"name": "fixed"}, 2),
    "dpt-text8-whitespace": lambda: dynamic_pooling({"name": "tokens", "tokens": [SPACE]}, 5.7),
    "dpt-text8-unigram": lambda: dynamic_pooling({"name": "unigram"}),
    "dpt-text8-entropy": lambda: dynamic_pooling({"name": "entropy"}, 4.1),
    "dpt-text8-gumbel": lambda: dynamic_pooling({"name": "gumbel", "rate": 0.2}),
    "hnet-1stage-small": hnet_small,
}


def preset(name: str) -> ShortenedConfig:
    """The config of a published name. ValueError, with the nearest, for another."""
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"preset is {name!r}; expected one of {', '.join(PRESETS)}{hint}")
    return PRESETS[name]()
