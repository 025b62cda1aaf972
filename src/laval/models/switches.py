"""Turning an adaptive model's knobs: dense, skipping, recorded, another budget."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import torch

from laval.models.checks import check_adaptive
from laval.models.learned import known
from laval.models.modeling import AdaptiveForCausalLM
from laval.models.thresholds import logit, tau_of
from laval.runtime import Recording, check_runtime
from laval.skip.policy import is_number


@contextmanager
def dense(model: AdaptiveForCausalLM):
    """Inside, the model is its untouched base, bit for bit."""
    with using(model, "dense"):
        yield model


@contextmanager
def using(model: AdaptiveForCausalLM, runtime: str):
    """Inside, forwards are carried out as `runtime` says: auto, masked, grouped, conditional, agreed, full or dense.

    TypeError for a model that is not adaptive.
    """
    check_adaptive(model)
    before, model.runtime = model.runtime, check_runtime(runtime)
    try:
        yield model
    finally:
        model.runtime = before


@contextmanager
def skipping(model: AdaptiveForCausalLM):
    """Inside, the break-even rule is off: `auto` skips even where it loses time, for quality and routes to be seen.

    TypeError for a model that is not adaptive.
    """
    check_adaptive(model)
    before, model.break_even = model.break_even, None
    try:
        yield model
    finally:
        model.break_even = before


@contextmanager
def evaluating(model: torch.nn.Module):
    """Inside, any model is in eval mode, no gradient is kept, and no break-even rule hides what skipping does."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), skipping(model) if isinstance(model, AdaptiveForCausalLM) else nullcontext():
            yield
    finally:
        model.train(training)


@contextmanager
def recording(model: AdaptiveForCausalLM):
    """Inside, every forward adds what ran to the Recording that is handed out."""
    check_adaptive(model)
    before, model.recording = model.recording, Recording()
    try:
        yield model.recording
    finally:
        model.recording = before


def set_depth(model: AdaptiveForCausalLM, depth: float) -> float:
    """Move to a mean depth on the calibrated budget curve; returns the depth that was calibrated nearest to it.

    Between two calibrated points the thresholds are interpolated as scores. The break-even rule becomes the one that
    this machine learned for the new depth, if any. ValueError without a curve, or for a depth off it; TypeError for a
    model that is not adaptive.
    """
    check_adaptive(model)
    curve = sorted(model.config.curve, key=lambda point: point["depth"])
    if not curve:
        raise ValueError("the model has no budget curve; expected a calibrated plug-in: calibrate it first")
    low, high = curve[0]["depth"], curve[-1]["depth"]
    if not (is_number(depth) and low <= depth <= high):
        raise ValueError(
            f"depth is {depth!r}; expected a mean number of layers from {low:.2f} to {high:.2f}, the calibrated range"
        )
    after = next(i for i, point in enumerate(curve) if point["depth"] >= depth)
    left, right = curve[max(after - 1, 0)], curve[after]
    share = 1.0 if right is left else (depth - left["depth"]) / (right["depth"] - left["depth"])
    taus = [mix(a, b, share) for a, b in zip(left["taus"], right["taus"], strict=True)]
    model.policy.set_thresholds(taus)
    model.config.taus = taus
    model.break_even = known(model)
    return left["depth"] + share * (right["depth"] - left["depth"])


def mix(a: float, b: float, share: float) -> float:
    """Two thresholds, interpolated as scores."""
    return tau_of((1 - share) * logit(a) + share * logit(b))


def depth_of(run: torch.Tensor, valid: torch.Tensor) -> float:
    """Mean layers per token: run bool [L, B, T], valid bool [B, T] (pads never count)."""
    return float(run.sum(0)[valid].double().mean())
