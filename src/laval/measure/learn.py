"""Learning where skipping loses on this machine: a minute of paired runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch

from laval.measure.speed import Walk, prefill, side_by_side
from laval.measure.timing import paired
from laval.models.checks import check_adaptive
from laval.models.depth import known_depth
from laval.models.switches import evaluating
from laval.runtime import BreakEven
from laval.runtime.break_even import Measured

WAYS = {"dense": "full", "skipping": "auto"}
ROUNDS, STEPS, PROMPT = 40, 4, 32


def learn(
    model,
    ids,
    batches: Sequence[int] = (1, 2, 4, 8, 16),
    lengths: Sequence[int] = (64, 512),
    seconds: float = 60,
) -> BreakEven:
    """The break-even rule of this machine for `model` at its depth, from text ids [N]; on a quiet machine.

    batches: rows of cached steps. lengths: tokens of prefills, as far as the context goes. seconds: in all, shared by
    the cells; each takes one round at least, and one of too few rounds shows nothing, so that every layer runs there.
    Errors: ValueError for a model that skips nothing, is not calibrated, or hides skipped tokens from later ones (it
    cannot go back and forth); for no text; TypeError for a model that is not adaptive.
    """
    depth = check_learnable(model, ids)
    context = model.config.text_config.max_position_embeddings
    plan = [("decode", rows) for rows in batches]
    plan += [("prefill", rows) for rows in sorted({min(length, context) for length in lengths})]
    measured: dict[str, dict[int, Measured]] = {"decode": {}, "prefill": {}}
    end = time.perf_counter() + seconds
    with evaluating(model):  # with no older rule in force
        for done, (name, rows) in enumerate(plan):
            share = max(end - time.perf_counter(), 0) / (len(plan) - done)
            measured[name][rows] = RATIOS[name](model, ids, rows, share)
    return BreakEven(depth, **measured, device=model.device.type)


def decode_ratio(model, ids, rows: int, seconds: float) -> Measured:
    """Dense over skipping, in single steps for `rows` sequences."""
    rounds = min(ROUNDS, (model.config.text_config.max_position_embeddings - PROMPT) // STEPS - 1)
    ids = side_by_side(ids, rows, PROMPT + STEPS * (rounds + 1)).to(model.device)
    return compared(
        {name: Walk(model, runtime, ids, PROMPT, STEPS) for name, runtime in WAYS.items()}, rounds, seconds
    )


def prefill_ratio(model, ids, length: int, seconds: float) -> Measured:
    """Dense over skipping, in one call over `length` tokens."""
    ids = side_by_side(ids, 1, length).to(model.device)
    return compared({name: partial(prefill, model, runtime, ids) for name, runtime in WAYS.items()}, ROUNDS, seconds)


def compared(ways, rounds: int, seconds: float) -> Measured:
    """The ways of `WAYS` by turns."""
    times = paired(ways, rounds, warmup=1, seconds_limit=seconds)
    ratio = times.ratio("skipping")
    return Measured(ratio.median, ratio.low, ratio.high, times.rounds)


RATIOS = {"decode": decode_ratio, "prefill": prefill_ratio}


def check_learnable(model, ids) -> float:
    """The depth that a rule would hold for; errors as `learn`."""
    check_adaptive(model)
    if not model.policy.layers:
        raise ValueError("the model skips nothing, so there is nothing to learn; expected one with a plug-in")
    if not model.policy.keeps_kv:
        raise ValueError(
            "keep_kv is False, and such a model cannot run every layer now and then; expected keep_kv=True"
        )
    depth = known_depth(model)
    if depth is None:
        raise ValueError("the plug-in is not calibrated, and a rule holds for one depth: laval calibrate comes first")
    if not len(torch.as_tensor(ids)):
        raise ValueError("ids is empty; expected the token ids of some text")
    return depth
