"""The plain families: Llama (and SmolLM), Mistral, Qwen 2, Qwen 3. They differ in windows and in q/k norms."""

from __future__ import annotations

from dataclasses import replace

import torch

from laval.blocks.block import Backbone, Block
from laval.blocks.parts import Parts


class LlamaBackbone(Backbone):
    """Llama and SmolLM: full attention everywhere."""


class MistralBlock(Block):
    """One sliding window for the whole model."""

    def attention_options(self) -> dict:
        return {"sliding_window": getattr(self.attention.config, "sliding_window", None)}


class MistralBackbone(Backbone):
    """Mistral: all layers slide, or none does."""

    Block = MistralBlock

    def layer_types(self) -> list[str]:
        kind = "full_attention" if self.config.sliding_window is None else "sliding_attention"
        return [kind] * len(self.blocks)


class Qwen2Block(Block):
    """A sliding window in some layers."""

    def attention_options(self) -> dict:
        return {"sliding_window": self.attention.sliding_window}


class Qwen2Backbone(Backbone):
    """Qwen 2: the configuration names each layer's type."""

    Block = Qwen2Block

    def layer_types(self) -> list[str]:
        return self.config.layer_types


class Qwen3Block(Qwen2Block):
    """Queries and keys are normalised per head."""

    def parts(self) -> Parts | None:
        return replace(super().parts(), query_norm=self.attention.q_norm, key_norm=self.attention.k_norm)

    def queries(self, z: torch.Tensor) -> torch.Tensor:
        return self.kernels.norm(self.attention.q_norm, super().queries(z))

    def keys(self, z: torch.Tensor) -> torch.Tensor:
        return self.kernels.norm(self.attention.k_norm, super().keys(z))


class Qwen3Backbone(Qwen2Backbone):
    """Qwen 3."""

    Block = Qwen3Block
