"""Decoder layers as three steps over transformers' own modules; one file per family group."""

from __future__ import annotations

from laval.blocks.block import Backbone, Block, Context
from laval.blocks.gemma import Gemma2Backbone, Gemma3Backbone
from laval.blocks.kernels import FEW_ROWS, MANY_ROWS, STOCK, Kernels
from laval.blocks.llama import LlamaBackbone, MistralBackbone, Qwen2Backbone, Qwen3Backbone
from laval.blocks.phi3 import Phi3Backbone

KNOWN_FAMILIES: dict[str, type[Backbone]] = {
    "llama": LlamaBackbone,
    "mistral": MistralBackbone,
    "qwen2": Qwen2Backbone,
    "qwen3": Qwen3Backbone,
    "gemma2": Gemma2Backbone,
    "gemma3_text": Gemma3Backbone,
    "phi3": Phi3Backbone,
}
"""From `config.model_type` to the family. Adding one: CONTRIBUTING.md, "How to add a model family"."""


def backbone_of(model, kernels: Kernels = STOCK) -> Backbone:
    """The steps of a transformers causal language model; its modules are used as they are, never copied or wrapped.

    kernels: STOCK, bit for bit; or equal up to rounding and quick on a CPU without gradients, FEW_ROWS for a few rows
    and MANY_ROWS for more. The family is found by the `model_type` of the model's text configuration. ValueError for
    an unknown family, or for a model without a language-model head.
    """
    family = model.config.get_text_config().model_type
    if family not in KNOWN_FAMILIES:
        raise ValueError(
            f"model_type {family!r} is not a family that laval knows; expected one of {', '.join(KNOWN_FAMILIES)}. "
            'To add it, follow "How to add a model family" in CONTRIBUTING.md.'
        )
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"model {type(model).__name__} has no language-model head; expected a causal language model: "
            "load it with AutoModelForCausalLM"
        )
    return KNOWN_FAMILIES[family](model, kernels)


__all__ = ["FEW_ROWS", "KNOWN_FAMILIES", "MANY_ROWS", "STOCK", "Backbone", "Block", "Context", "backbone_of"]
