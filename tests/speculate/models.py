"""Tiny adaptive models, and the dense model's own text."""

from __future__ import annotations

import torch

import laval
from laval.models import using
from tests.tiny import tiny_model


def adaptive(family: str = "llama", method=None, **options):
    """A tiny model with routers of some spread."""
    method = method or laval.FlexiDepth(layers=(1, 2, 3), router_width=8)
    model = laval.attach(tiny_model(family, **options), method)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def plain(model, ids, **options):
    """What `generate` writes when every layer runs."""
    with using(model, "full"):
        return model.generate(ids, **options)
