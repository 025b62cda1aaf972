"""Decoding by lanes: a token at a time, every layer or only those that a policy runs; or a few tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache

from laval.blocks import Backbone
from laval.ops.rows import PLAIN_DTYPES
from laval.runtime.batch import BatchDecoder
from laval.runtime.lane import Lane
from laval.runtime.masks import rows_masks
from laval.runtime.record import Taken
from laval.runtime.rows_lane import RowsLane
from laval.skip import Route, SkipPolicy

ONE_ROW = ("full", "conditional", "agreed")
SOME_ROWS = ("full", "grouped", "conditional", "agreed")


class Decoder:
    """All layers of one model as lanes. Made for one cache, of the weights as they are then.

    ValueError for a model whose layers have no lanes.
    """

    def __init__(self, backbone: Backbone, policy: SkipPolicy, dtype: torch.dtype):
        self.backbone, self.policy, self.dtype = backbone, policy, dtype
        self.rows_lanes = [RowsLane(block, dtype) for block in backbone.blocks]
        self.singles = {index: policy.single(index) for index in policy.layers}

    @cached_property
    def lanes(self) -> list[Lane]:
        firsts = {index: single.first for index, single in self.singles.items()}
        return [Lane(block, self.dtype, firsts.get(block.index)) for block in self.backbone.blocks]

    @cached_property
    def batch(self) -> BatchDecoder:
        return BatchDecoder(self.backbone, self.policy, self.dtype)

    def __call__(self, step: str, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [B, T, D] carried out by `step`, and the routes taken: one row, rows of one sequence, or one of each."""
        batch, length, width = x.shape
        if length > 1:
            x, taken = self.full_rows(x[0], contexts, cache)
        elif batch > 1:
            x, taken = getattr(self.batch, step)(x[:, 0], contexts, cache)
        else:
            x, taken = getattr(self, step)(x.view(-1), contexts, cache)
        return x.view(batch, length, width), taken

    @torch.inference_mode()
    def full(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [D] through every layer."""
        for lane, turn, context in zip(self.lanes, turns_of(contexts), contexts, strict=True):
            x = lane(x, turn, context.mask, cache)
        return x, ()

    @torch.inference_mode()
    def full_rows(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [T, D] through every layer."""
        turns, masks = turns_of(contexts, len(x)), rows_masks(contexts, x, self.rows_lanes[0].group)
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

    agreed = conditional  # one row agrees with itself


def turns_of(contexts, *rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """cos and sin of the one position [Dh], or of `rows` of them [T, Dh], for each layer; alike ones are shared."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for context in contexts:
        if id(context.cos) not in made:
            made[id(context.cos)] = context.cos.view(*rows, -1), context.sin.view(*rows, -1)
    return [made[id(context.cos)] for context in contexts]


def scaled(update: torch.Tensor, scale: float | None) -> torch.Tensor:
    return update if scale is None else update * scale


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
    """Whether a call on x [B, T, D] is one that a decoder can carry out by `step`, with its growing cache.

    One token of each sequence by any step of lanes, or several of one sequence in full; with masks for all heads.
    """
    steps = ("full",) if x.shape[1] > 1 else ONE_ROW if len(x) == 1 else SOME_ROWS
    shaped = x.shape[1] == 1 or len(x) == 1
    known = type(cache) is DynamicCache and shaped and step in steps
    return known and not any(context.kwargs or by_head(context.mask, x) for context in contexts)


def by_head(mask, x: torch.Tensor) -> bool:
    return mask is not None and mask.shape[:3] not in ((1, 1, x.shape[1]), (len(x), 1, x.shape[1]))


def make(model) -> Decoder | None:
    if model.base.dtype not in PLAIN_DTYPES or not model.policy.keeps_kv:
        return None
    try:
        return Decoder(model.quick, model.policy, model.base.dtype)
    except ValueError:
        return None
