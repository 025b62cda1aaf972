"""Tiny random models of every known family, made so that nothing passes by accident.

Norm weights are no identities, windows are shorter than the prompts, soft-caps bite, layer types are mixed. In
float64 they really compute in float64: transformers' norms and its eager softmax otherwise pass through float32.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from laval.blocks import KNOWN_FAMILIES

FAMILIES = list(KNOWN_FAMILIES)
WINDOW = 6

COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}
MIXED = ["sliding_attention", "full_attention"] * 2
SPECIAL = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2, "head_dim": 24},
    "gemma2": dict(
        GEMMA, attn_implementation="eager", layer_types=MIXED, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3_text": dict(GEMMA, layer_types=MIXED),
    "phi3": {"sliding_window": WINDOW, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
}


def tiny_config(family: str, **overrides):
    """The transformers config of a tiny model of a known family; `overrides` replace single fields."""
    return AutoConfig.for_model(family, **{**COMMON, **SPECIAL[family], **overrides})


def tiny_model(family: str, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides):
    """A tiny random causal language model in eval mode; `attn_implementation` is an override like any other."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **overrides))
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.3)
    model = model.to(dtype).eval()
    return exact(model) if dtype == torch.float64 else model


def implementations(family: str) -> list[str]:
    """The attention implementations that a family runs with on any machine."""
    # transformers 5.24 refuses sdpa for Gemma 2, and before that it silently dropped the soft-cap.
    return ["eager"] if family == "gemma2" else ["eager", "sdpa"]


def exact(model):
    """Make a float64 model compute in float64 throughout: norms by class, eager attention by a function of its own."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__class__ = exact_norm(type(module))
    if model.config._attn_implementation == "eager":
        model.set_attn_implementation("exact")
    return model


def exact_norm(stock: type) -> type:
    """The RMSNorm class `stock` without its detour through float32."""

    def forward(self, x):
        centred = hasattr(self, "eps")  # Gemma stores weight - 1
        eps = self.eps if centred else self.variance_epsilon
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (self.weight + centred)

    return type(f"Exact{stock.__name__}", (stock,), {"forward": forward})


def exact_attention(module, query, key, value, mask, scaling, dropout=0.0, softcap=None, **kwargs):
    """Attention in the dtype of its inputs: [B, H, T, Dh] -> [B, T, H, Dh]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.mT * scaling
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if mask is None else scores + mask
    return (scores.softmax(-1) @ value).transpose(1, 2), None


AttentionInterface.register("exact", exact_attention)
AttentionMaskInterface.register("exact", eager_mask)
