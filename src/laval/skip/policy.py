"""What every way of skipping layers has in common."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import NamedTuple

import torch
from torch import nn

from laval.blocks import Context
from laval.skip.route import Route
from laval.skip.several import Several

NEVER_SKIPPED = 0  # layer 0 writes the cache entries that generate counts tokens by


def check_layers(layers, depth: int) -> tuple[int, ...]:
    """`layers` sorted; ValueError unless they are distinct, exist, and leave layer 0 alone."""
    listed = isinstance(layers, Iterable) and not isinstance(layers, str)
    chosen = list(layers) if listed else [layers]
    wrong = [layer for layer in chosen if not is_whole(layer) or not NEVER_SKIPPED < layer < depth]
    if not listed or wrong or len(set(chosen)) != len(chosen):
        raise ValueError(
            f"layers {chosen if listed else repr(layers)} cannot be skipped; expected distinct layer numbers "
            f"from 1 to {depth - 1} in a list (the model has {depth} layers and layer 0 always runs)"
            + (f"; remove {wrong}" if wrong and listed else "")
        )
    return tuple(sorted(map(int, chosen)))


def is_whole(number) -> bool:
    """An integer of any kind; True and False are none."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def is_number(number) -> bool:
    """A real number of any kind; True and False are none."""
    return isinstance(number, Real) and not isinstance(number, bool)


class SkipPolicy(nn.Module):
    """Decides, layer by layer, which tokens run. Subclasses define `route`, learned ones `adapt` as well.

    layers: those that may be skipped. keeps_kv: skipped tokens stay readable for later ones.
    """

    keeps_kv = True

    def __init__(self, layers: tuple[int, ...]):
        super().__init__()
        self.layers = layers

    def route(self, index: int, z: torch.Tensor, context: Context) -> Route:
        """Who runs layer `index`, from its normalised input z [B, T, D] and nothing of the future."""
        raise TypeError(f"{type(self).__name__} does not say who runs: define route(index, z, context)")

    def replay(self, index: int, z: torch.Tensor, run: torch.Tensor) -> Route:
        """The route of layer `index` when `run` [B, T] was decided elsewhere."""
        return Route(run)

    def adapt(self, index: int, u: torch.Tensor) -> torch.Tensor:
        """What skipping rows u [..., D] (feed-forward norm applied) add instead of the layer's updates."""
        return torch.zeros_like(u)

    def single(self, index: int) -> Single:
        """The same answers for one row at layer `index`."""
        return Single(self, index)

    def several(self, index: int) -> Several:
        """The same answers for one row of each of several sequences."""
        return Several(self, index)


class Decision(NamedTuple):
    """Whether one token runs a layer; scale: what the update it takes is multiplied by, None for 1."""

    ran: bool
    score: float | None = None
    scale: float | None = None
    route: Route | None = None


class Single:
    """A policy's answers at one layer for one token, a plain vector [D]: here its ordinary ones.

    first: a weight [b, D] whose product e [b] with the layer's normalised input z [D] `decide` wants to have, or None.
    """

    first: torch.Tensor | None = None

    def __init__(self, policy: SkipPolicy, index: int):
        self.policy, self.index = policy, index

    def decide(self, z: torch.Tensor, e: torch.Tensor, context: Context) -> Decision:
        """Whether the token runs the layer."""
        route = self.policy.route(self.index, z.view(1, 1, -1), context)
        ran = bool(route.run)
        scale = route.run_scale if ran else route.skip_scale
        return Decision(ran, scale=None if scale is None else float(scale), route=route)

    def route(self, decision: Decision) -> Route:
        """The record of a decision, made when somebody asks for it."""
        return decision.route

    def adapt(self, u: torch.Tensor) -> torch.Tensor:
        """What a skipping row u [D] adds."""
        return self.policy.adapt(self.index, u.view(1, 1, -1)).view(-1)
