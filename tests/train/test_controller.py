"""The depth controller on synthetic scores."""

from __future__ import annotations

import math

import pytest
import torch

from laval.train.controller import DepthController

LAYERS, ROUTED = 30, 12


def scores(centre: float = 0.0, tokens: int = 512, seed: int = 0) -> torch.Tensor:
    """Layers with different means, as trained routers have: [Lr, B, T]."""
    generator = torch.Generator().manual_seed(seed)
    return centre + torch.linspace(-1, 1, ROUTED)[:, None, None] + torch.randn(ROUTED, 2, tokens, generator=generator)


def depth_under(threshold: float, of: torch.Tensor) -> float:
    return LAYERS - (of <= threshold).float().sum(0).mean().item()


@pytest.mark.parametrize("depth", [18.5, 21, 25.5, 29, 29.9])
def test_threshold_reaches_the_wanted_depth(depth):
    controller = DepthController(LAYERS, ROUTED)
    controller.observe(scores())
    assert abs(depth_under(controller.threshold(depth), scores()) - depth) < 0.1


def test_the_ends_are_exact():
    controller = DepthController(LAYERS, ROUTED)
    controller.observe(scores())
    assert depth_under(controller.threshold(LAYERS), scores()) == LAYERS
    assert depth_under(controller.threshold(LAYERS - ROUTED), scores()) == LAYERS - ROUTED


def test_a_jump_is_followed_without_overshoot():
    controller, depths = DepthController(LAYERS, ROUTED), []
    for step in range(60):
        now = scores(centre=0.0 if step < 20 else 1.5, seed=step)
        depths.append(depth_under(controller.threshold(26), now) if step else 26)
        controller.observe(now)
    after = depths[20:]
    assert after[0] > 28  # the router ran away towards "never skip"
    assert min(after) > 26 - 0.25  # and the controller never answers with less depth than wanted
    assert all(abs(depth - 26) < 0.25 for depth in after[20:])


def test_a_steady_drift_leaves_a_small_lag():
    controller, depths = DepthController(LAYERS, ROUTED), []
    for step in range(80):
        now = scores(centre=0.02 * step, seed=step)
        depths.append(depth_under(controller.threshold(26), now))
        controller.observe(now)
    assert all(abs(depth - 26) < 0.5 for depth in depths[20:])


def test_noise_is_damped():
    thresholds, single = [], []
    controller = DepthController(LAYERS, ROUTED)
    for step in range(200):
        now = scores(centre=float(torch.randn(())), tokens=16, seed=step)
        controller.observe(now)
        alone = DepthController(LAYERS, ROUTED)
        alone.observe(now)
        thresholds.append(controller.threshold(26))
        single.append(alone.threshold(26))
    spread, raw = torch.tensor(thresholds[50:]).std(), torch.tensor(single[50:]).std()
    assert spread < 0.5 * raw  # rate 0.2: a third for independent noise
    assert abs(torch.tensor(thresholds[50:]).mean() - torch.tensor(single[50:]).mean()) < 0.2


@pytest.mark.parametrize("depth", [17.9, 30.1, math.nan])
def test_a_depth_out_of_reach(depth):
    with pytest.raises(ValueError, match=r"depth is .*; expected 18 to 30 \(12 of 30 layers may be skipped\)"):
        DepthController(LAYERS, ROUTED).threshold(depth)


def test_before_anything_was_observed_half_a_gate_decides():
    assert DepthController(LAYERS, ROUTED).threshold(26) == 0.0
