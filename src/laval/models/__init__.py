"""Adaptive models in the Hugging Face world: configs, classes, attaching, saving, loading."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from laval.models.attach import attach
from laval.models.configuration import AdaptiveConfig
from laval.models.dynamic_pooling import load_dynamic_pooling
from laval.models.modeling import AdaptiveForCausalLM, AdaptiveOutput
from laval.models.presets import preset
from laval.models.quantise import quantise
from laval.models.shortened import ShortenedForCausalLM, ShortenedOutput
from laval.models.shortened_config import ShortenedConfig
from laval.models.switches import dense, recording, set_depth, skipping, using

AutoConfig.register(AdaptiveConfig.model_type, AdaptiveConfig, exist_ok=True)
AutoModelForCausalLM.register(AdaptiveConfig, AdaptiveForCausalLM, exist_ok=True)
AutoConfig.register(ShortenedConfig.model_type, ShortenedConfig, exist_ok=True)
AutoModelForCausalLM.register(ShortenedConfig, ShortenedForCausalLM, exist_ok=True)

__all__ = [
    "AdaptiveConfig",
    "AdaptiveForCausalLM",
    "AdaptiveOutput",
    "ShortenedConfig",
    "ShortenedForCausalLM",
    "ShortenedOutput",
    "attach",
    "dense",
    "load_dynamic_pooling",
    "preset",
    "quantise",
    "recording",
    "set_depth",
    "skipping",
    "using",
]
