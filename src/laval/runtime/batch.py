"""Decoding several sequences side by side, a token of each at a time: every layer, or those that rows run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from laval.blocks import Backbone
from laval.runtime.batch_lane import BatchLane
from laval.runtime.masks import batch_masks
from laval.runtime.record import Taken
from laval.skip import Route, SkipPolicy
from laval.skip.several import Decisions, Several


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
            if not any(decisions.ran):  # the weights of the layer's own branches are never touched
                x = x + scaled(answers.adapt(lane.feed_norm(x)), decisions.skip_scale)
                continue
            mixed = lane.mix(z, kv, turn, mask)
            if all(decisions.ran):
                x = run(lane, x, mixed, decisions.run_scale)
            else:
                x = run_some(lane, answers, x, mixed, decisions)
        return x, Taken(list(self.answers.values()), taken)


def run(lane: BatchLane, x: torch.Tensor, mixed: torch.Tensor, scale) -> torch.Tensor:
    """The rest of a layer for rows x [R, D] whose attention is mixed [R, H * Dh]."""
    h = x + lane.attention_update(mixed)
    return h + scaled(lane.feed_forward(lane.feed_norm(h)), scale)


def run_some(lane: BatchLane, answers: Several, x: torch.Tensor, mixed: torch.Tensor, decisions: Decisions):
    """Rows that run gathered, computed and put back; the others by their adapter."""
    rows = torch.tensor([row for row, ran in enumerate(decisions.ran) if ran])
    rest = torch.tensor([row for row, ran in enumerate(decisions.ran) if not ran])
    ran = run(lane, x.index_select(0, rows), mixed.index_select(0, rows), pick(decisions.run_scale, rows))
    left = x.index_select(0, rest)
    skipped = left + scaled(answers.adapt(lane.feed_norm(left)), pick(decisions.skip_scale, rest))
    return torch.empty_like(x).index_copy_(0, rows, ran).index_copy_(0, rest, skipped)


def pick(scale, rows: torch.Tensor):
    return None if scale is None else scale.index_select(0, rows)


def scaled(update: torch.Tensor, scale) -> torch.Tensor:
    return update if scale is None else update * scale
