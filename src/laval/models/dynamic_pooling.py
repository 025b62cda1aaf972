"""State dicts of the dynamic-pooling authors' code (arXiv 2211.09761, commit 1e6f360) as shortened models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from laval.models.shortened import ShortenedForCausalLM
from laval.models.shortened_config import ShortenedConfig
from laval.models.weights import check_tensors, read_tensors

KINDS = ("none", "fixed", "whitespaces", "unigram", "entropy", "gumbel")
SPACE = 0
"""Id of the space: the authors sort their vocabulary by frequency."""
FIXED, LEFT, TEMPERATURE, PRIOR = 2, 2, 0.5, 0.2
"""The authors' defaults for what a state dict does not say."""

PARTS = {
    "dec_attn.r_net": "attention.distances",
    "dec_attn.o_net": "attention.output",
    "dec_attn.layer_norm": "attention_norm",
    "pos_ff.CoreNet.0": "feed_forward.up",
    "pos_ff.CoreNet.3": "feed_forward.down",
    "pos_ff.layer_norm": "feed_norm",
}
ENDS = {
    "word_emb.weight": "kind.embedding.weight",
    "final_cast.weight": "kind.output.weight",
    "final_cast.bias": "kind.output.bias",
    "r_w_bias": "kind.distance.content",
    "r_r_bias": "kind.distance.position",
    "down_ln.weight": "stacks.reduced_norm.weight",
    "down_ln.bias": "stacks.reduced_norm.bias",
    "boundary_predictor.boundary_predictor.0.weight": "stacks.commit.hidden.weight",
    "boundary_predictor.boundary_predictor.0.bias": "stacks.commit.hidden.bias",
    "boundary_predictor.boundary_predictor.2.weight": "stacks.commit.head.weight",
    "boundary_predictor.boundary_predictor.2.bias": "stacks.commit.head.bias",
}
STACKS = {"0": "stacks.outer", "1": "stacks.inner.stack", "2": "stacks.outward"}
ALONE = {"0": "stacks.stack"}


def load_dynamic_pooling(
    weights: Mapping[str, torch.Tensor] | str | Path, config: Mapping | ShortenedConfig, boundaries: str | None = None
) -> ShortenedForCausalLM:
    """The authors' weights as a shortened model in eval mode, in the weights' own number type.

    weights: their state dict (names may start with "weights."), or a safetensors file with it. config: their sizes
    (layers, d_model, n_head, d_head, d_inner, n_token; if wanted fixed_sf, spikes_left, temp, prior, space), or a
    ready `ShortenedConfig`. boundaries: none, fixed, whitespaces, unigram, entropy or gumbel; None tells none from
    unigram by the weights. Losses follow the paper; set `rule.legacy` in a `ShortenedConfig` for those of their code.
    ValueError for other names, shapes or kinds.
    """
    source = weights if isinstance(weights, (str, Path)) else "weights"
    found = own_names(read_tensors(Path(weights)) if source == weights else weights)
    if not isinstance(config, ShortenedConfig):
        config = config_of(config, boundaries or guessed(found))
    dtype = found["word_emb.weight"].dtype if "word_emb.weight" in found else torch.float32
    model = ShortenedForCausalLM(config).to(dtype)
    state = translated(found, alone=not config.levels)
    check_tensors(state, model.state_dict(), source)
    model.load_state_dict(state)
    return model.eval()


def own_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state dict alone, out of a file that may hold inputs and outputs beside it."""
    marked = {name[len("weights.") :]: tensor for name, tensor in weights.items() if name.startswith("weights.")}
    return marked or {name.removeprefix("module."): tensor for name, tensor in weights.items()}


def guessed(found: Mapping) -> str:
    if "null_group" not in found:
        return "none"
    if any(name.startswith("boundary_predictor") for name in found):
        return "unigram"
    raise ValueError("boundaries is None, and the weights do not say; expected fixed or whitespaces")


def config_of(sizes: Mapping, kind: str) -> ShortenedConfig:
    """The config that the authors' sizes stand for."""
    if kind not in KINDS:
        raise ValueError(f"boundaries is {kind!r}; expected one of {', '.join(KINDS)}")
    missing = [key for key in ("layers", "d_model", "n_head", "d_head", "d_inner", "n_token") if key not in sizes]
    if missing:
        raise ValueError(f"config lacks {', '.join(missing)}; expected the sizes of the authors' model")
    pre, (middle,), post = sizes["layers"]
    if pre != post and kind != "none":
        raise ValueError(f"layers is {sizes['layers']}; expected as many before the middle as after it")
    factor = sizes.get("fixed_sf", FIXED) if kind == "fixed" else round(1 / sizes.get("prior", PRIOR), 6)
    paper = {
        "width": sizes["d_model"],
        "feed_forward": sizes["d_inner"],
        "heads": sizes["n_head"],
        "head_width": sizes["d_head"],
        "dropout": sizes.get("dropout", 0.0),
    }
    plan = f"{pre}@1" if kind == "none" else f"{pre}@1 {middle}@{factor:g} {post}@1"
    return ShortenedConfig(plan, {"rule": rule_of(kind, sizes)}, paper, vocab_size=sizes["n_token"])


def rule_of(kind: str, sizes: Mapping) -> dict:
    hidden = {"hidden": sizes["d_inner"]}
    return {
        "none": {"name": "fixed"},
        "fixed": {"name": "fixed"},
        "whitespaces": {"name": "tokens", "tokens": [sizes.get("space", SPACE)]},
        "unigram": {"name": "unigram", **hidden},
        "entropy": {"name": "entropy", "left": sizes.get("spikes_left", LEFT), **hidden},
        "gumbel": {
            "name": "gumbel",
            "rate": sizes.get("prior", PRIOR),
            "temperature": sizes.get("temp", TEMPERATURE),
            **hidden,
        },
    }[kind]


def translated(found: Mapping[str, torch.Tensor], alone: bool) -> dict[str, torch.Tensor]:
    """The same tensors under our names; what is unknown keeps its own, to be reported."""
    state = {}
    for name, tensor in found.items():
        if name == "pos_emb.inv_freq":  # follows from the width
            continue
        if name == "null_group":
            state["stacks.start.row"] = tensor.flatten()
        elif name.startswith("layers."):
            state |= layer_of(name, tensor, ALONE if alone else STACKS)
        else:
            state[ENDS.get(name, name)] = tensor
    return state


def layer_of(name: str, tensor: torch.Tensor, stacks: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """One tensor of a layer; queries, keys and values are one map there."""
    _, stack, number, rest = name.split(".", 3)
    if stack not in stacks:
        return {name: tensor}
    place = f"{stacks[stack]}.layers.{number}."
    part, _, kind = rest.rpartition(".")
    if part == "dec_attn.qkv_net":
        names = ("queries", "keys", "values")
        return {f"{place}attention.{map_}.{kind}": piece for map_, piece in zip(names, tensor.chunk(3), strict=True)}
    return {f"{place}{PARTS.get(part, part)}.{kind}": tensor}
