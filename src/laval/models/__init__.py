"""Adaptive models in the Hugging Face world: configs, classes, attaching, saving, loading."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from laval.models.attach import attach
from laval.models.configuration import AdaptiveConfig
from laval.models.modeling import AdaptiveForCausalLM, AdaptiveOutput
from laval.models.quantise import quantise
from laval.models.switches import dense, recording, set_depth, skipping, using

AutoConfig.register(AdaptiveConfig.model_type, AdaptiveConfig, exist_ok=True)
AutoModelForCausalLM.register(AdaptiveConfig, AdaptiveForCausalLM, exist_ok=True)

__all__ = [
    "AdaptiveConfig",
    "AdaptiveForCausalLM",
    "AdaptiveOutput",
    "attach",
    "dense",
    "quantise",
    "recording",
    "set_depth",
    "skipping",
    "using",
]
