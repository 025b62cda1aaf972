"""From a wanted mean depth to thresholds: one score for all routed layers, found on the routes really taken."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tqdm import tqdm

from laval.evaluate.controls import run_share
from laval.evaluate.reader import reader_of
from laval.evaluate.text import Batch, as_batches
from laval.models import AdaptiveForCausalLM
from laval.models.checks import check_adaptive
from laval.models.switches import evaluating
from laval.models.thresholds import tau_of, taus_of

log = logging.getLogger("laval")

TOLERANCE = 0.02
TRIES = 8
LIMIT = 16.0  # scores beyond are 0 or 1 as float32 gates


@dataclass(frozen=True)
class Measured:
    """Mean depth under one common threshold, and the router scores on the way, sorted, of all valid tokens."""

    depth: float
    scores: torch.Tensor
    threshold: float = math.nan

    def quantile(self, share: float) -> float:
        """The threshold above which `share` of these scores lie, halfway between two neighbours."""
        skipped = round((1 - share) * len(self.scores))
        if skipped == 0:
            return max(float(self.scores[0]) - 1, -LIMIT)
        if skipped == len(self.scores):
            return min(float(self.scores[-1]) + 1, LIMIT)
        return float(self.scores[skipped - 1 : skipped + 1].mean())


def calibrate(
    model: AdaptiveForCausalLM, batches, depths, tolerance: float = TOLERANCE, progress: bool = True
) -> list[dict]:
    """The budget curve on calibration text, as AdaptiveConfig.curve holds it: one point per wanted depth, rising.

    Each point has the measured depth, a tau per routed layer, and nats per token. One score threshold serves all
    layers, for scores are trained to be comparable; lower layers that skip change the scores above them, so every
    threshold is tried out. The model's own thresholds are left as they were.
    batches: ids [B, T], mappings with input_ids and attention_mask, or Batch; pads never count.
    Errors: ValueError for a depth out of reach, or a method without thresholds; TypeError for a model that is not
    adaptive.
    """
    batches, points = as_batches(batches), []
    check_budget(model, depths)
    with kept_thresholds(model), tqdm(total=len(depths), desc="calibrating", disable=not progress) as bar:
        seen = measure(model, batches)
        for depth in sorted(depths, reverse=True):  # from the deepest on, each search starts at its neighbour
            seen = search(model, batches, depth, tolerance, seen)
            if abs(seen.depth - depth) > tolerance:
                log.warning("depth %.2f cannot be met: %s", depth, nearest(seen))
            points.append({"depth": seen.depth, "taus": taus_of(model.policy), "nats": mean_nats(model, batches)})
            bar.update()
    return points[::-1]


def match_depth(model: AdaptiveForCausalLM, batches, depth: float, tolerance: float = TOLERANCE) -> float:
    """Set the thresholds so that mean depth on this very text is the wanted one; returns the depth measured.

    ValueError when no common threshold comes within `tolerance` layers (the nearest one stays set).
    """
    batches = as_batches(batches)
    check_budget(model, [depth])
    seen = search(model, batches, depth, tolerance, measure(model, batches))
    if abs(seen.depth - depth) > tolerance:
        raise ValueError(f"depth is {depth}; expected one that a common threshold can meet: {nearest(seen)}")
    return seen.depth


def depth_at(model: AdaptiveForCausalLM, batches) -> float:
    """Mean layers per token on these batches as the model stands; pads never count."""
    return measure(model, as_batches(batches)).depth


def search(model, batches: list[Batch], depth: float, tolerance: float, seen: Measured) -> Measured:
    """Try quantiles of the scores last seen, kept between thresholds known to be too low and too high.

    The model is left at the best threshold tried. Usually two or three forwards over the text.
    """
    low, high, best = -math.inf, math.inf, None
    share = run_share(model, depth)
    for _ in range(TRIES):
        threshold = between(seen.quantile(share), low, high)
        if threshold in (low, high):  # tied scores: nothing lies between
            break
        seen = measure_at(model, batches, threshold)
        if best is None or abs(seen.depth - depth) < abs(best.depth - depth):
            best = seen
        if abs(best.depth - depth) <= tolerance:
            break
        low, high = (threshold, high) if seen.depth > depth else (low, threshold)
    apply(model, best.threshold)
    return best


def between(threshold: float, low: float, high: float) -> float:
    """The threshold, or the middle when it falls outside known bounds."""
    if low < threshold < high or not math.isfinite(low + high):
        return threshold
    return (low + high) / 2


def measure_at(model, batches: list[Batch], threshold: float) -> Measured:
    apply(model, threshold)
    seen = measure(model, batches)
    return Measured(seen.depth, seen.scores, threshold)


def measure(model, batches: list[Batch]) -> Measured:
    """One forward over all batches, without logits."""
    reader, routed = reader_of(model), list(getattr(model.policy, "layers", ()))
    runs, fed, scores = 0, 0, []
    with evaluating(model):
        for batch in batches:
            seen = reader.forward(batch)
            runs += int(seen.run[:, batch.valid].sum())
            fed += int(batch.valid.sum())
            scores.append(seen.gate[routed][:, batch.valid].double().logit(1 / (1 + math.exp(LIMIT))).flatten())
    return Measured(runs / fed, torch.cat(scores).sort().values)


def mean_nats(model, batches: list[Batch]) -> float:
    """Nats per scored token."""
    reader = reader_of(model)
    with evaluating(model):
        nats = [reader.nats(reader.forward(batch).states, batch) for batch in batches]
    return float(torch.cat(nats).mean())


def apply(model: AdaptiveForCausalLM, threshold: float) -> None:
    """One score threshold for every routed layer. A break-even rule learned for others no longer holds."""
    model.break_even = None
    model.policy.set_thresholds([tau_of(threshold)] * len(model.policy.layers))


@contextmanager
def kept_thresholds(model: AdaptiveForCausalLM) -> Iterator[None]:
    """Inside, thresholds may be moved; afterwards they are what they were. ValueError for a method without any."""
    if not hasattr(model.policy, "thresholds"):
        raise ValueError(
            f"{type(model.policy).__name__} has no thresholds; expected a method with routers: FlexiDepth"
        )
    before, rule = dict(model.policy.thresholds), model.break_even
    try:
        yield
    finally:
        model.policy.thresholds, model.break_even = before, rule


def check_budget(model: AdaptiveForCausalLM, depths) -> None:
    check_adaptive(model)
    if not hasattr(model.policy, "thresholds"):
        raise ValueError(
            f"{type(model.policy).__name__} has no thresholds; expected a method with routers: FlexiDepth"
        )
    if model.runtime in ("full", "dense"):
        raise ValueError(
            f"runtime is {model.runtime!r}, where no router decides; expected any other: leave `laval.dense` first"
        )
    for depth in depths:
        run_share(model, depth)


def nearest(seen: Measured) -> str:
    low, high = (float(seen.scores[i]) for i in (0, -1))
    return (
        f"the nearest is {seen.depth:.2f}, router scores lie between {low:.3f} and {high:.3f}. "
        "Routers that are new or bunched cannot be told apart by a threshold: train them, or use more text"
    )
