"""Phi 3: one fused projection for queries, keys and values; RoPE may turn only part of each head."""

from __future__ import annotations

import torch

from laval.blocks.block import Context
from laval.blocks.llama import MistralBackbone, MistralBlock


class Phi3Block(MistralBlock):
    """The fused weight is sliced, so rows that only have to be readable never pay for queries."""

    def compose(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """The three steps over one fused product: bit for bit what `stock` gives, with stock kernels."""
        # A product with a slice of the weight may sum in another order than the fused product: equal, not identical.
        fused = self.kernels.linear(self.attention.qkv_proj, self.norm(x))
        z = self.heads(fused).transpose(1, 2)  # [B, H + 2 Hkv, T, Dh]
        queries, keys, values = z.split(self.head_counts(), dim=1)
        h = x + self.attend_with(queries, self.remember(keys, values, context), context)
        return h + self.feed_forward(self.feed_norm(h))

    def keys_values(self, z: torch.Tensor, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every row, appended to the cache if there is one: z [B, T, D] -> 2 x [B, Hkv, S, Dh]."""
        queries, *rest = self.head_counts()
        keys, values = self.project(z, queries, sum(rest)).transpose(1, 2).split(rest, dim=1)
        return self.remember(keys, values, context)

    def queries(self, z: torch.Tensor) -> torch.Tensor:
        return self.project(z, 0, self.head_counts()[0])  # [..., H, Dh]

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        width = cos.shape[-1]
        return torch.cat((super().rotate(x[..., :width], cos, sin), x[..., width:]), dim=-1)

    def parts(self) -> None:
        """None: the fused projections are no modules of their own."""

    def attention_update(self, mixed: torch.Tensor) -> torch.Tensor:
        return self.layer.resid_attn_dropout(super().attention_update(mixed))

    def feed_forward(self, u: torch.Tensor) -> torch.Tensor:
        """The feed-forward branch's residual update, u [..., D] -> [..., D]."""
        return self.layer.resid_mlp_dropout(super().feed_forward(u))

    def gate_up(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two products in front of the activation of a gated feed-forward network."""
        return self.kernels.linear(self.layer.mlp.gate_up_proj, u).chunk(2, dim=-1)

    def head_counts(self) -> list[int]:
        config = self.attention.config
        return [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]

    def project(self, z: torch.Tensor, first: int, count: int) -> torch.Tensor:
        """Heads `first` to `first + count` of the fused projection, [..., D] -> [..., count, Dh]."""
        fused, width = self.attention.qkv_proj, self.attention.head_dim
        if hasattr(fused, "part"):  # quantised
            return self.heads(fused.part(z, first * width, count * width))
        if type(fused) is not torch.nn.Linear:  # a LoRA has no plain weight to slice
            return self.heads(fused(z)).narrow(-2, first, count)
        return self.heads(self.kernels.product(z, fused.weight.narrow(0, first * width, count * width)))


class Phi3Backbone(MistralBackbone):
    """Phi 3: all layers slide, or none does."""

    Block = Phi3Block
