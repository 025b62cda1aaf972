"""Decoding several sequences side by side, a token of each at a time: every layer, or those that rows run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from laval.blocks import Backbone
from laval.runtime.batch_lane import BatchLane
from laval.runtime.masks import batch_masks
from laval.runtime.record import Taken
from laval.skip import Route, SkipPolicy
from laval.skip.several import Decisions, Several

GATHERED = 0.65
"""Largest share of rows that is gathered: measured, 4, 5, 6 and 7 of 8 took 0.70, 0.86, 1.00 and 1.17 of the time of
computing all, 8 and 12 of 16 0.84 and 0.93, 2 and 3 of 4 0.97 and 1.15."""


class BatchDecoder:
    """All layers of one model as lanes for rows [B, D]; ValueError for a model whose layers have none."""

    def __init__(self, backbone: Backbone, policy: SkipPolicy, dtype: torch.dtype):
        self.answers = {index: policy.several(index) for index in policy.layers}
        firsts = {index: answers.first for index, answers in self.answers.items()}
        self.lanes = [BatchLane(block, dtype, firsts.get(block.index)) for block in backbone.blocks]

    @torch.inference_mode()
    def full(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [B, D] through every layer."""
        for lane, context, mask in zip(self.lanes, contexts, batch_masks(contexts, x), strict=True):
            x = lane(x, (context.cos, context.sin), mask, cache)
        return x, ()

    def grouped(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [B, D], each row through the layers that it runs, and the routes taken."""
        return self.skipping(x, contexts, cache, lambda decisions: decisions)

    conditional = grouped  # rows that agree touch one branch only, in both

    def agreed(self, x: torch.Tensor, contexts, cache) -> tuple[torch.Tensor, Sequence[Route]]:
        """x [B, D] through the layers that any row runs, and the routes taken."""
        return self.skipping(x, contexts, cache, Decisions.agreed)

    @torch.inference_mode()
    def skipping(self, x: torch.Tensor, contexts, cache, settle) -> tuple[torch.Tensor, Sequence[Route]]:
        """settle: what becomes of the rows' own decisions at a layer."""
        taken = []
        for lane, context, mask in zip(self.lanes, contexts, batch_masks(contexts, x), strict=True):
            answers, turn = self.answers.get(lane.index), (context.cos, context.sin)
            if answers is None:
                x = lane(x, turn, mask, cache)
                continue
            z = lane.norm(x)
            kv, e = lane.keys_values(z, turn, cache)
            decisions = settle(answers.decide(z, e, context))
            taken.append(decisions)
            step = skip_all if not any(decisions.ran) else run_all if all(decisions.ran) else run_some
            x = step(lane, answers, Rows(x, z, kv, turn, mask), decisions)
        return x, Taken(list(self.answers.values()), taken)


class Rows(NamedTuple):
    """What a layer's branches start from: x, z [R, D], and for each row its keys, values, position and mask."""

    x: torch.Tensor
    z: torch.Tensor
    kv: tuple[torch.Tensor, torch.Tensor]
    turn: tuple[torch.Tensor, torch.Tensor]
    mask: torch.Tensor | None

    def only(self, rows: torch.Tensor) -> Rows:
        """Those that are named by `rows` [R], int64."""
        x, z, *kv = (each.index_select(0, rows) for each in (self.x, self.z, *self.kv))
        return Rows(x, z, tuple(kv), tuple(pick(each, rows) for each in self.turn), pick(self.mask, rows))


def skip_all(lane: BatchLane, answers: Several, rows: Rows, decisions: Decisions) -> torch.Tensor:
    """Nobody runs: the weights of the layer's own branches are never touched."""
    return rows.x + scaled(answers.adapt(lane.feed_norm(rows.x)), decisions.skip_scale)


def run_all(lane: BatchLane, answers: Several, rows: Rows, decisions: Decisions) -> torch.Tensor:
    """Everybody runs."""
    return run(lane, rows, decisions.run_scale)


def run_some(lane: BatchLane, answers: Several, rows: Rows, decisions: Decisions) -> torch.Tensor:
    """Rows that run are gathered where they are few enough, and computed with all others where they are not.

    The weights are read in both cases, and products of 5 to 8 rows take about as long, as do those of 9 to 16; what is
    saved is attention, and products where they fall to fewer.
    """
    runs = torch.tensor([row for row, ran in enumerate(decisions.ran) if ran])
    rest = torch.tensor([row for row, ran in enumerate(decisions.ran) if not ran])
    if len(runs) <= GATHERED * len(decisions.ran):
        ran = run(lane, rows.only(runs), pick(decisions.run_scale, runs))
        y = torch.empty_like(rows.x).index_copy_(0, runs, ran)
    else:
        y = run(lane, rows, decisions.run_scale)
    left = rows.x.index_select(0, rest)
    skipped = left + scaled(answers.adapt(lane.feed_norm(left)), pick(decisions.skip_scale, rest))
    return y.index_copy_(0, rest, skipped)


def run(lane: BatchLane, rows: Rows, scale) -> torch.Tensor:
    """The branches of a layer, keys and values being there: [R, D]."""
    h = rows.x + lane.attend(rows.z, rows.kv, rows.turn, rows.mask)
    return h + scaled(lane.feed_forward(lane.feed_norm(h)), scale)


def pick(each, rows: torch.Tensor):
    """The part of those rows, where there is one for each."""
    return each if each is None or len(each) == 1 else each.index_select(0, rows)


def scaled(update: torch.Tensor, scale) -> torch.Tensor:
    return update if scale is None else update * scale
