"""Depth: which tokens run which layers. A policy per method; how a forward is carried out is runtime's business."""

from __future__ import annotations

from laval.skip.fixed import DropLayers, RandomRoutes
from laval.skip.flexidepth import FlexiDepth, FlexiDepthPolicy
from laval.skip.policy import SkipPolicy
from laval.skip.route import Route

METHODS = {"flexidepth": FlexiDepth, "drop_layers": DropLayers, "random_routes": RandomRoutes}
"""From the name in a config to the method. Adding one: CONTRIBUTING.md, "Add a method"."""


def method_name(method) -> str:
    """The name a method is saved under."""
    return next(name for name, cls in METHODS.items() if type(method) is cls)


__all__ = [
    "METHODS",
    "DropLayers",
    "FlexiDepth",
    "FlexiDepthPolicy",
    "RandomRoutes",
    "Route",
    "SkipPolicy",
    "method_name",
]
