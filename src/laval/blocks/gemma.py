"""Gemma 2 and Gemma 3 (text): four norms a layer, so each branch's update passes a norm before it is added.

Gemma 2 soft-caps the attention scores; Gemma 3 normalises queries and keys and turns them by layer type instead.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from laval.blocks.block import Backbone
from laval.blocks.kernels import STOCK, Kernels
from laval.blocks.llama import Qwen2Block, Qwen3Block
from laval.blocks.parts import Parts


class GemmaNorms:
    """Where Gemma's four norms stand: before and after each branch."""

    def parts(self) -> Parts | None:
        layer = self.layer
        return replace(
            super().parts(),
            output_norm=layer.post_attention_layernorm,
            feed_norm=layer.pre_feedforward_layernorm,
            down_norm=layer.post_feedforward_layernorm,
        )

    def attention_update(self, mixed: torch.Tensor) -> torch.Tensor:
        return self.kernels.norm(self.layer.post_attention_layernorm, super().attention_update(mixed))

    def feed_norm(self, h: torch.Tensor) -> torch.Tensor:
        """The norm in front of the feed-forward network, h [..., D] -> u [..., D]."""
        return self.kernels.norm(self.layer.pre_feedforward_layernorm, h)

    def feed_forward(self, u: torch.Tensor) -> torch.Tensor:
        """The feed-forward branch's residual update, its closing norm included, u [..., D] -> [..., D]."""
        return self.kernels.norm(self.layer.post_feedforward_layernorm, super().feed_forward(u))


class Gemma2Block(GemmaNorms, Qwen2Block):
    """Gemma 2: windows in some layers, soft-capped scores."""

    def attention_options(self) -> dict:
        return {**super().attention_options(), "softcap": self.attention.attn_logit_softcapping}


class Gemma3Block(GemmaNorms, Qwen3Block):
    """Gemma 3: windows in some layers, q/k norms."""


class Gemma2Backbone(Backbone):
    """Gemma 2: scaled embeddings (inside the embedding module), soft-capped logits.

    ValueError if the configuration asks for bidirectional attention: a decoder must not read the future.
    """

    Block = Gemma2Block

    def __init__(self, model: torch.nn.Module, kernels: Kernels = STOCK):
        super().__init__(model, kernels)
        if getattr(self.config, "use_bidirectional_attention", None):
            raise ValueError(
                "use_bidirectional_attention is True, expected False: such a model is an encoder, and laval decides "
                "row by row from the past only. Load a causal Gemma checkpoint."
            )

    def layer_types(self) -> list[str]:
        return self.config.layer_types

    def head(self, x: torch.Tensor, logits_to_keep: int | torch.Tensor = 0) -> torch.Tensor:
        """Final norm, language-model head and soft-cap, x [B, T, D] -> logits [B, kept, V]."""
        logits, cap = super().head(x, logits_to_keep), self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap


class Gemma3Backbone(Gemma2Backbone):
    """Gemma 3 (text): rotary frequencies differ between sliding and full layers."""

    Block = Gemma3Block

    def rotary(self, x, position_ids) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """cos and sin [B or 1, T, Dh] for each layer type."""
        return {kind: self.decoder.rotary_emb(x, position_ids, kind) for kind in set(self.layer_types())}
