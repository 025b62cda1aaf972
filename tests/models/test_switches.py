"""The knobs of an adaptive model, and what is no adaptive model or no depth."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import laval
from laval.evaluate import calibrate, depth_at, match_depth, rate_for
from laval.models import recording, using
from laval.models.plugin import load_plugin, save_plugin
from laval.report.tracing import trace_generation
from laval.skip import RandomRoutes
from tests.models.folders import prompt, routed
from tests.tiny import tiny_model

FOR_ADAPTIVE_MODELS = {
    "dense": lambda model: laval.dense(model).__enter__(),
    "using": lambda model: using(model, "masked").__enter__(),
    "recording": lambda model: recording(model).__enter__(),
    "set_depth": lambda model: laval.set_depth(model, 3),
    "trace": lambda model: laval.trace(model, prompt()),
    "trace_generation": lambda model: trace_generation(model, prompt(), max_new_tokens=2),
    "train": lambda model: laval.train(model, recipe="recipes/smollm2-flexidepth.yaml"),
    "save_plugin": lambda model: save_plugin(model, Path("never")),
    "calibrate": lambda model: calibrate(model, [prompt()], [3]),
    "match_depth": lambda model: match_depth(model, [prompt()], 3),
    "rate_for": lambda model: rate_for(model, 3),
}


@pytest.mark.parametrize("what", ["stock", "smollm2"])
@pytest.mark.parametrize("name", FOR_ADAPTIVE_MODELS)
def test_what_is_no_adaptive_model_is_said(name, what):
    given = tiny_model("llama") if what == "stock" else what
    shown = "LlamaForCausalLM" if what == "stock" else "'smollm2'"
    with pytest.raises(TypeError, match=f"model is .*{shown}.*expected an adaptive model.*laval.attach.*laval.load"):
        FOR_ADAPTIVE_MODELS[name](given)


def test_a_base_is_a_model(tmp_path):
    save_plugin(routed(), tmp_path / "plugin")
    with pytest.raises(TypeError, match="base is 'llama'; expected a Hugging Face model.*from_pretrained"):
        load_plugin(tmp_path / "plugin", "llama")


def curved(taus=((0.4, 0.6), (0.1, 0.2))):
    model = routed()
    model.config.curve = [{"depth": depth, "taus": list(point)} for depth, point in zip((3.0, 4.0), taus, strict=True)]
    return model


@pytest.mark.parametrize("depth", ["3", None, True, [3], math.nan, math.inf, 3 + 0j, torch.tensor(3.5)])
def test_a_depth_is_a_number_on_the_curve(depth):
    model = curved()
    before = dict(model.policy.thresholds)
    with pytest.raises(ValueError, match="depth is .*expected a mean number of layers from 3.00 to 4.00"):
        laval.set_depth(model, depth)
    assert model.policy.thresholds == before


@pytest.mark.parametrize("depth", ["3", None, True, math.nan])
def test_a_budget_is_a_number_too(depth):
    model = routed()
    for budget in (rate_for, lambda model, depth: match_depth(model, [prompt()], depth)):
        with pytest.raises(ValueError, match="depth is .*expected 2 to 4 layers"):
            budget(model, depth)


@pytest.mark.parametrize("depth", [3, 3.5, np.float64(4), np.int64(4)])
def test_numbers_of_any_kind_are_depths(depth):
    assert laval.set_depth(curved(), depth) == pytest.approx(float(depth))


@pytest.mark.parametrize("taus", [((5e-324, 5e-324), (0.5, 0.5)), ((0.5, 0.5), (math.nextafter(1, 0),) * 2)])
def test_thresholds_at_the_ends_of_what_numbers_hold_are_mixed(taus):
    model = curved(taus)
    for depth in (3.0, 3.01, 3.5, 3.99, 4.0):
        laval.set_depth(model, depth)
        assert all(0 < tau < 1 for tau in model.config.taus)


def test_infinite_thresholds_can_be_measured_and_traced():
    model = routed()
    model.policy.thresholds = dict.fromkeys(model.policy.layers, -math.inf)
    assert depth_at(model, [prompt()]) == 4
    assert laval.trace(model, prompt()).mean_depth == 4


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70, "0", 1.5, True, None])
def test_the_seed_of_random_routes_is_in_range(seed):
    with pytest.raises(ValueError, match=rf"seed is .*expected a whole number from 0 to {2**32 - 1}"):
        RandomRoutes((1,), seed=seed)


def test_the_largest_seed_runs():
    model = laval.attach(tiny_model("llama"), RandomRoutes((1, 2), seed=2**32 - 1))
    assert torch.isfinite(model(prompt()).logits).all()
