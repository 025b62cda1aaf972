"""Ways to carry out one routed layer, equal in result given equal routes.

Each takes a block, its policy, hidden states x [B, T, D], the layer's context, and optionally the run mask decided
elsewhere; each returns the new hidden states and the route it took.
"""

from __future__ import annotations

import torch

from laval.blocks import Block, Context
from laval.blocks.hidden import HidingBlock
from laval.skip import Route, SkipPolicy


def masked(block: Block, policy: SkipPolicy, x, context: Context, run=None) -> tuple[torch.Tensor, Route]:
    """All branches for all rows, then selection: the reference, and the path of training."""
    z = block.norm(x)
    route = decide(block, policy, z, context, run)
    block = readable(block, policy, route)
    kv = block.keys_values(z, context)
    asks, runs, skips = route.weights(x.dtype)
    h = x + asks * block.attend(z, kv, context)
    u = block.feed_norm(h)
    return h + runs * block.feed_forward(u) + skips * policy.adapt(block.index, u), route


def grouped(block: Block, policy: SkipPolicy, x, context: Context, run=None) -> tuple[torch.Tensor, Route]:
    """The rows that run are gathered, computed densely and scattered back; the others take the adapter."""
    z = block.norm(x)
    route = decide(block, policy, z, context, run)
    block = readable(block, policy, route)
    kv = block.keys_values(z, context)
    return scatter(block, policy, x, z, kv, context, route), route


def conditional(block: Block, policy: SkipPolicy, x, context: Context, run=None) -> tuple[torch.Tensor, Route]:
    """Branches for rows that agree, one row above all: nobody touches the weights of the branch not taken."""
    z = block.norm(x)
    route = decide(block, policy, z, context, run)
    block = readable(block, policy, route)
    kv = block.keys_values(z, context)
    ran = ayes(route.run)
    if ran == route.run.numel():
        return run_all(block, x, z, kv, context, route), route
    if ran:
        return scatter(block, policy, x, z, kv, context, route), route
    return skip_all(block, policy, x, route), route


def agreed(block: Block, policy: SkipPolicy, x, context: Context, run=None) -> tuple[torch.Tensor, Route]:
    """Skipped only if every row asks to skip, so that its weights need not be read; else every row runs.

    Changes routes: of several rows fewer skip than ask to, never more. Given routes are obeyed.
    """
    z = block.norm(x)
    if run is None:
        asked = policy.route(block.index, z, context).run
        run = asked.any().expand_as(asked)
    return conditional(block, policy, x, context, run)


STEPS = {"masked": masked, "grouped": grouped, "conditional": conditional, "agreed": agreed}


def ayes(run: torch.Tensor) -> int:
    """How many rows run; the one place where decoding waits for the decision."""
    return int(run.item() if run.numel() == 1 else run.sum())


def decide(block: Block, policy: SkipPolicy, z, context: Context, run) -> Route:
    if run is None:
        return policy.route(block.index, z, context)
    return policy.replay(block.index, z, run)


def readable(block: Block, policy: SkipPolicy, route: Route) -> Block | HidingBlock:
    """The block itself; or, where skipped rows keep no keys and values, one that hides them from later rows."""
    return block if policy.keeps_kv else HidingBlock(block, route.run)


def run_all(block: Block, x, z, kv, context: Context, route: Route) -> torch.Tensor:
    h = x + block.attend(z, kv, context)
    return h + scaled(block.feed_forward(block.feed_norm(h)), route.run_scale)


def skip_all(block: Block, policy: SkipPolicy, x, route: Route) -> torch.Tensor:
    return x + scaled(policy.adapt(block.index, block.feed_norm(x)), route.skip_scale)


def scatter(block: Block, policy: SkipPolicy, x, z, kv, context: Context, route: Route) -> torch.Tensor:
    flat, run = x.flatten(0, 1), route.run.flatten()  # [B*T, D], [B*T]
    rows, rest = run.nonzero().squeeze(1), (~run).nonzero().squeeze(1)
    h = flat.index_select(0, rows) + block.attend(z, kv, context, rows)  # [R, D]
    ran = h + scaled(block.feed_forward(block.feed_norm(h)), pick(route.run_scale, rows))
    left = flat.index_select(0, rest)  # [B*T - R, D]
    skipped = left + scaled(policy.adapt(block.index, block.feed_norm(left)), pick(route.skip_scale, rest))
    y = torch.empty_like(flat).index_copy_(0, rows, ran).index_copy_(0, rest, skipped)
    return y.view_as(x)


def pick(scale, rows):
    return None if scale is None else scale.flatten().index_select(0, rows)


def scaled(update, scale):
    return update if scale is None else scale.to(update.dtype)[..., None] * update
