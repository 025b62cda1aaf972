"""What callers hand to a forward beside tokens and masks: checked, and put into the form that the steps expect."""

from __future__ import annotations

import torch

NOT_KEPT = ("output_hidden_states", "output_attentions")


def attention_options(kwargs: dict) -> dict:
    """The keyword arguments meant for attention. ValueError for states that a skipping model does not hand out."""
    for name in NOT_KEPT:
        if kwargs.get(name):
            raise ValueError(
                f"{name} is {kwargs[name]}; a model that skips does not keep them, expected False. "
                f"Ask the base: model.base(..., {name}=True)"
            )
    return {name: value for name, value in kwargs.items() if name not in NOT_KEPT}


def check_routes(routes, layers: tuple[int, ...], x: torch.Tensor) -> dict[int, torch.Tensor]:
    """Bool [B, T] for each of `layers`, in their order, for hidden states x [B, T, D]. ValueError for other shapes."""
    found = [torch.as_tensor(run, device=x.device).bool() for run in routes]
    expected = [len(layers), *x.shape[:2]]
    shape = [len(found), *(found[0].shape if found else x.shape[:2])]
    if shape != expected:
        raise ValueError(f"routes have the shape {shape}; expected {expected}: routed layers, batch, tokens")
    return dict(zip(layers, found, strict=True))
