"""What an error in a layer's output costs: nats at the end per unit of relative error, one number a layer."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from laval.blocks import Backbone

DEAREST = 1.0  # nats a token; the quadratic form has a heavy tail that the true cost has not


def sensitivity(backbone: Backbone, batches: list[torch.Tensor], layers, seed: int = 0) -> dict[int, float]:
    """Second-order cost of leaving each of `layers` out, divided by how much the layer changes its input.

    batches: token ids [B, T]. The cost is half the Fisher form of the layer's update: 1/2 E (g . update)^2 with g the
    gradient of log p(y) for y drawn from the model itself (Martens 2020, arXiv 1412.1193, section 5). The first
    token of a sequence is left out: it is nobody's to skip.
    """
    generator = torch.Generator().manual_seed(seed)
    cost, change = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    for ids in batches:
        states, gradients = states_and_gradients(backbone, ids, generator)
        for layer in layers:
            after, gradient = states[layer + 1][:, 1:], gradients[layer + 1][:, 1:]
            update = after - states[layer][:, 1:]
            nats = 0.5 * (gradient * update).sum(-1).square()
            cost[layer] += nats.clamp(max=DEAREST).mean().item()
            change[layer] += (update.square().sum(-1) / after.square().sum(-1)).mean().item()
    return {layer: cost[layer] / change[layer] for layer in layers}


def states_and_gradients(backbone: Backbone, ids: torch.Tensor, generator) -> tuple[list[torch.Tensor], tuple]:
    """Hidden states around every layer and the gradients of a sampled log-likelihood, L + 1 of [B, T, D] each.

    No parameter's `.grad` is touched.
    """
    with torch.enable_grad():
        x = backbone.embed(ids).detach().requires_grad_()
        states = [x]
        for block, context in zip(backbone.blocks, backbone.contexts(x), strict=True):
            states.append(block(states[-1], context))
        logits = backbone.head(states[-1]).flatten(0, 1)  # [B*T, V]
        drawn = torch.multinomial(logits.detach().float().softmax(-1), 1, generator=generator).squeeze(1)
        gradients = torch.autograd.grad(F.cross_entropy(logits, drawn, reduction="sum"), states)
    return [state.detach() for state in states], gradients
