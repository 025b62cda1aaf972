"""Transformers that spend less: fewer tokens through the middle, fewer layers for the easy tokens."""

from __future__ import annotations

import sys

__version__ = "0.1.0"  # first: saved plug-ins name it

if "laval_command" not in sys.modules:  # the command imports what its verb needs, and help needs nothing
    import laval.train as train
    from laval.measure.model import model_cost as cost
    from laval.models import (
        AdaptiveConfig,
        AdaptiveForCausalLM,
        ShortenedConfig,
        ShortenedForCausalLM,
        attach,
        dense,
        load_dynamic_pooling,
        preset,
        quantise,
        set_depth,
    )
    from laval.models.load import load
    from laval.report.tracing import trace
    from laval.skip import DropLayers, FlexiDepth, RandomRoutes
    from laval.speculate import lossless

__all__ = [
    "AdaptiveConfig",
    "AdaptiveForCausalLM",
    "DropLayers",
    "FlexiDepth",
    "RandomRoutes",
    "ShortenedConfig",
    "ShortenedForCausalLM",
    "__version__",
    "attach",
    "cost",
    "dense",
    "load",
    "load_dynamic_pooling",
    "lossless",
    "preset",
    "quantise",
    "set_depth",
    "trace",
    "train",
]
