"""Whether what was handed over is a model, and an adaptive one."""

from __future__ import annotations

from transformers import PreTrainedModel

from laval.models.modeling import AdaptiveForCausalLM


def check_adaptive(model) -> None:
    """TypeError, with the ways to an adaptive model, for anything else."""
    if not isinstance(model, AdaptiveForCausalLM):
        raise TypeError(
            f"model is {shown(model)}; expected an adaptive model: make one with laval.attach(model, "
            "laval.FlexiDepth()), or load one with laval.load"
        )


def check_base_model(base) -> None:
    """TypeError unless a plug-in can be put on `base` at all."""
    if not isinstance(base, PreTrainedModel):
        raise TypeError(
            f"base is {shown(base)}; expected a Hugging Face model: load it with "
            "AutoModelForCausalLM.from_pretrained, or leave base out"
        )


def shown(given) -> str:
    """A module by its class, for its text fills pages; anything else as it was written."""
    return f"a {type(given).__name__}" if hasattr(given, "forward") else f"{given!r:.60}"
