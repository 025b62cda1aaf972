"""Decoding one sequence: a token at a time, every layer or only those that a policy runs; or a few tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache

from laval.blocks import Backbone
from laval.ops.rows import PLAIN_DTYPES
from laval.runtime.lane import Lane
from laval.runtime.rows_lane import RowsLane
from laval.skip import Route, SkipPolicy
from laval.skip.policy import Decision, Single


class Decoder:
    """All layers of one model as lanes. Made for one cache, of the weights as they are then.

    ValueError for a model whose layers have no lanes.
    """

    def __init__(self, backbone: Backbone, policy: SkipPolicy, dtype: torch.dtype):
        self.backbone = backbone
        self.rows_lanes = [RowsLane(block, dtype) for block in backbone.blocks]
        self.singles = {index: policy.single(index) for index in policy.layers}
        firsts = {index: single.first for index, single in self.singles.items()}
        self.lanes = [Lane(block, dtype, firsts.get(block.index)) for block in backbone.blocks]
        self.policy = policy

    def __call__(self, step: str, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [1, T, D] carried out by `step`, full or conditional, and the routes taken; T > 1 only in full."""
        if x.shape[1] > 1:
            x, taken = self.full_rows(x[0], contexts, cache)
        else:
            x, taken = getattr(self, step)(x.view(-1), contexts, cache)
        return x.view(1, -1, x.shape[-1]), taken

    @torch.inference_mode()
    def full(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [D] through every layer."""
        for lane, turn, context in zip(self.lanes, turns_of(contexts), contexts, strict=True):
            x = lane(x, turn, context.mask, cache)
        return x, ()

    @torch.inference_mode()
    def full_rows(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [T, D] through every layer."""
        turns, masks = turns_of(contexts, len(x)), masks_of(contexts, x, self.rows_lanes[0].group)
        for lane, turn, mask in zip(self.rows_lanes, turns, masks, strict=True):
            x = lane(x, turn, mask, cache)
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


def turns_of(contexts, *rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """cos and sin of the one position [Dh], or of `rows` of them [T, Dh], for each layer; alike ones are shared."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for context in contexts:
        if id(context.cos) not in made:
            made[id(context.cos)] = context.cos.view(*rows, -1), context.sin.view(*rows, -1)
    return [made[id(context.cos)] for context in contexts]


def masks_of(contexts, x: torch.Tensor, group: int) -> list[torch.Tensor]:
    """What rows x [T, D] may see, for each layer, added to scores: [1, 1, G * T, S] for G heads that share keys."""
    made: dict[int, torch.Tensor] = {}
    for mask in (context.mask for context in contexts):
        if id(mask) not in made:
            made[id(mask)] = added(causal(x) if mask is None else mask, x.dtype).repeat(1, 1, group, 1)
    return [made[id(context.mask)] for context in contexts]


def causal(x: torch.Tensor) -> torch.Tensor:
    """What no mask means to transformers for several rows x [T, D]: a start, each row seeing those before it."""
    return torch.ones(1, 1, len(x), len(x), dtype=torch.bool).tril()


def added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask that tells what to see as one to be added, made once instead of in every layer."""
    return mask if mask.dtype != torch.bool else torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)


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


def suits(step: str, x: torch.Tensor, contexts, cache) -> bool:
    """Whether a call is one that a decoder can carry out by `step`: one sequence and its growing cache.

    One token in full or conditional, or more in full; with a mask for all heads or none.
    """
    alone = type(cache) is DynamicCache and x.shape[0] == 1
    steps = ("full", "conditional") if x.shape[1] == 1 else ("full",)
    return alone and step in steps and not any(context.kwargs or by_head(context.mask, x) for context in contexts)


def by_head(mask, x: torch.Tensor) -> bool:
    return mask is not None and mask.shape[:3] != (1, 1, x.shape[1])


def make(model) -> Decoder | None:
    if model.base.dtype not in PLAIN_DTYPES or not model.policy.keeps_kv:
        return None
    try:
        return Decoder(model.quick, model.policy, model.base.dtype)
    except ValueError:
        return None
