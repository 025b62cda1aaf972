"""Tiny models and texts for the evaluation tests."""

from __future__ import annotations

import torch

from laval.models import attach
from laval.skip import FlexiDepth
from tests.tiny import tiny_model


def routed(family: str = "llama", layers=(1, 2, 3), gate: str = "hard_mask", **overrides):
    """A tiny adaptive model whose routers and adapters say something."""
    model = attach(tiny_model(family, **overrides), FlexiDepth(layers=layers, gate=gate, router_width=8)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def some_text(tokens: int = 61, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 128, (tokens,), generator=torch.Generator().manual_seed(seed))
