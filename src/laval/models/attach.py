"""From a Hugging Face model and a method to an adaptive model."""

from __future__ import annotations

from transformers import PreTrainedModel

from laval.models.configuration import AdaptiveConfig
from laval.models.modeling import AdaptiveForCausalLM


def attach(model: PreTrainedModel, method) -> AdaptiveForCausalLM:
    """An adaptive model over `model`, whose weights it shares and never changes; only the new policy trains.

    method: FlexiDepth(...), DropLayers(...), RandomRoutes(...). ValueError for an unknown family or bad layers.
    """
    base = model.base if isinstance(model, AdaptiveForCausalLM) else model
    adaptive = AdaptiveForCausalLM(AdaptiveConfig.of(base, method), base=base)
    adaptive.policy.to(base.device, base.dtype)
    base.requires_grad_(False)
    adaptive.generation_config = base.generation_config
    adaptive.tokenizer = getattr(model, "tokenizer", None)
    return adaptive.train(model.training)
