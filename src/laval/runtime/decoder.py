"""Decoding one token of one sequence at a time, every layer or only those that a policy runs."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache

from laval.blocks import Backbone
from laval.ops.rows import PLAIN_DTYPES
from laval.runtime.lane import Lane
from laval.skip import Route, SkipPolicy
from laval.skip.policy import Decision, Single


class Decoder:
    """All layers of one model as lanes. Made for one cache, of the weights as they are then.

    ValueError for a model whose layers have no lanes.
    """

    def __init__(self, backbone: Backbone, policy: SkipPolicy, dtype: torch.dtype):
        self.backbone = backbone
        self.singles = {index: policy.single(index) for index in policy.layers}
        firsts = {index: single.first for index, single in self.singles.items()}
        self.lanes = [Lane(block, dtype, firsts.get(block.index)) for block in backbone.blocks]
        self.policy = policy

    @torch.inference_mode()
    def full(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [D] through every layer."""
        for lane, turn, context in zip(self.lanes, turns_of(contexts), contexts, strict=True):
            x = lane(x, turn, context.mask, cache)
        return x, ()

    @torch.inference_mode()
    def conditional(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [D] through the layers that it runs, and the routes of those it might have skipped."""
        taken = []
        for lane, turn, context in zip(self.lanes, turns_of(contexts), contexts, strict=True):
            single = self.singles.get(lane.index)
            if single is None:
                x = lane(x, turn, context.mask, cache)
                continue
            z = lane.norm(x)
            kv, e = lane.keys_values(z, turn, cache)
            decision = single.decide(z, e, context)
            taken.append(decision)
            if decision.ran:
                h = x + lane.attend(z, kv, turn, context.mask)
                x = h + scaled(lane.feed_forward(lane.feed_norm(h)), decision.scale)
            else:  # the weights of the layer's own branches are never touched
                x = x + scaled(single.adapt(lane.feed_norm(x)), decision.scale)
        return x, Taken(list(self.singles.values()), taken)


def turns_of(contexts) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """cos and sin [Dh] of the one position for each layer; layers of one kind share theirs."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for context in contexts:
        if id(context.cos) not in made:
            made[id(context.cos)] = context.cos.view(-1), context.sin.view(-1)
    return [made[id(context.cos)] for context in contexts]


def scaled(update: torch.Tensor, scale: float | None) -> torch.Tensor:
    return update if scale is None else update * scale


class Taken(Sequence):
    """The routes of one token, written out only for who asks: thousands of tokens pass and few are looked at."""

    def __init__(self, singles: list[Single], decisions: list[Decision]):
        self.singles, self.decisions = singles, decisions

    def __len__(self) -> int:
        return len(self.decisions)

    def __getitem__(self, index: int) -> Route:
        return self.singles[index].route(self.decisions[index])


class Decoders:
    """The decoder that belongs to each living cache of one model."""

    def __init__(self):
        self.known: WeakKeyDictionary = WeakKeyDictionary()

    def __deepcopy__(self, memo) -> Decoders:
        return Decoders()  # a copied model has other weights

    def __reduce__(self):
        return Decoders, ()

    def of(self, model, cache) -> Decoder | None:
        """The decoder for `model` and `cache`; None where one cannot be made."""
        key = (id(model), torch.get_num_threads(), model.base.dtype)
        made_for, decoder = self.known.get(cache, (None, None))
        if made_for != key:
            decoder = make(model)
            self.known[cache] = (key, decoder)
        return decoder


def suits(x: torch.Tensor, contexts, cache) -> bool:
    """Whether a call is one that a decoder can carry out: one token, a growing cache, a mask for all heads or none."""
    plain = type(cache) is DynamicCache and x.shape[:2] == (1, 1)
    return plain and not any(context.kwargs or by_head(context.mask) for context in contexts)


def by_head(mask) -> bool:
    return mask is not None and mask.shape[:3] != (1, 1, 1)


def make(model) -> Decoder | None:
    if model.base.dtype not in PLAIN_DTYPES or not model.policy.keeps_kv:
        return None
    try:
        return Decoder(model.quick, model.policy, model.base.dtype)
    except ValueError:
        return None
