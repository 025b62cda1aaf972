"""From a Hugging Face model and a method to an adaptive model."""

from __future__ import annotations

from transformers import PreTrainedModel

from laval.blocks import backbone_of
from laval.models.configuration import AdaptiveConfig
from laval.models.modeling import AdaptiveForCausalLM
from laval.skip import METHODS


def attach(model: PreTrainedModel, method) -> AdaptiveForCausalLM:
    """An adaptive model over `model`, whose weights it shares and never changes; only the new policy trains.

    method: FlexiDepth(...), DropLayers(...), RandomRoutes(...). ValueError for an unknown family or bad layers.
    """
    base = model.base if isinstance(model, AdaptiveForCausalLM) else model
    check(base, method)
    adaptive = AdaptiveForCausalLM(AdaptiveConfig.of(base, method), base=base)
    adaptive.policy.to(base.device, base.dtype)
    base.requires_grad_(False)
    adaptive.generation_config = base.generation_config
    adaptive.tokenizer = getattr(model, "tokenizer", None)
    return adaptive.train(model.training)


def check(base, method) -> None:
    """ValueError unless a method is attached to a causal language model of a known family."""
    if not isinstance(base, PreTrainedModel):
        raise ValueError(
            f"model is {base!r:.60}; expected a Hugging Face model: load it with "
            "AutoModelForCausalLM.from_pretrained, or with laval.load"
        )
    if type(method) not in METHODS.values():
        known = ", ".join(f"{cls.__name__}(...)" for cls in METHODS.values())
        raise ValueError(f"method is {method!r:.60}; expected {known}")
    backbone_of(base)  # an unknown family is the first thing to say: its config may lack what methods read
