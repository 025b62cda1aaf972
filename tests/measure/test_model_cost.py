"""The cost of a given model follows its plug-in and the depth it is set to."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.measure import LayerShape, Peaks, SkipShape, cost
from laval.measure.model import skip_shape
from laval.models.depth import known_depth
from laval.models.plugin import load_plugin, save_plugin
from laval.skip import DropLayers, FlexiDepth, RandomRoutes
from tests.evaluate.models import routed
from tests.tiny import tiny_model

PEAKS = Peaks("cpu", "float32", read_gb_s=10.0, copy_gb_s=10.0, gflop_s=50.0)
CURVE = [
    {"depth": 2.0, "taus": [0.8, 0.8, 0.8]},
    {"depth": 3.0, "taus": [0.5, 0.5, 0.5]},
    {"depth": 3.6, "taus": [0.2, 0.3, 0.4]},
]


def test_sizes_and_shares_reach_the_cost_model():
    model = routed()
    shape, skip = LayerShape.from_config(model.base.config), SkipShape((1, 2, 3), 8, 6)
    assert skip_shape(model) == skip
    sizes = {"batch": 2, "prompt": 7, "new": 5}
    assert laval.cost(model, **sizes, depth=2.5, peaks=PEAKS) == cost(shape, skip, 0.5, **sizes, peaks=PEAKS)
    assert laval.cost(model, **sizes, run_share=[0.1, 0.2, 0.3], peaks=PEAKS) == cost(
        shape, skip, [0.1, 0.2, 0.3], **sizes, peaks=PEAKS
    )
    with laval.dense(model):
        assert laval.cost(model, peaks=PEAKS).saved_share == 0
    half = model.to(torch.bfloat16)
    assert laval.cost(half, depth=4, peaks=PEAKS).decode.weight_bytes == pytest.approx(
        cost(shape, skip, 1.0, prompt=512, new=128, dtype_bytes=2).decode.weight_bytes
    )


def test_options_of_the_method_that_cost_nothing_are_not_counted():
    base = tiny_model("llama")
    plain = laval.attach(base, FlexiDepth(layers=(2,), router="linear", adapter=False))
    assert skip_shape(plain) == SkipShape((2,))
    assert skip_shape(laval.attach(base, DropLayers((1,)))) == SkipShape((1,))
    assert skip_shape(laval.attach(base, DropLayers(()))) is None and skip_shape(base) is None
    assert laval.cost(base, peaks=PEAKS).saved_share == 0


@pytest.mark.parametrize("depth", [2.0, 2.4, 3.0, 3.3, 3.6])
def test_the_depth_on_the_curve_is_found_again(depth):
    model = routed()
    model.config.curve = CURVE
    laval.set_depth(model, depth)
    assert known_depth(model) == pytest.approx(depth, abs=1e-4)


def test_the_depth_survives_saving(tmp_path):
    model = routed()
    model.config.curve = CURVE
    laval.set_depth(model, 2.7)
    save_plugin(model, tmp_path / "plugin")
    assert known_depth(load_plugin(tmp_path / "plugin", base=model.base)) == pytest.approx(2.7, abs=1e-4)


def test_fixed_methods_know_their_depth():
    base = tiny_model("llama")
    assert known_depth(laval.attach(base, DropLayers((1, 3)))) == 2
    assert known_depth(laval.attach(base, RandomRoutes((1, 3), rate=0.25))) == 2.5


def test_off_the_curve_nothing_is_known():
    model = routed()
    assert known_depth(model) is None
    with pytest.raises(ValueError, match="laval calibrate"):
        laval.cost(model, peaks=PEAKS)
    model.config.curve = CURVE
    model.policy.set_thresholds([0.9, 0.9, 0.9])
    assert known_depth(model) is None


@pytest.mark.parametrize("depth", [0.5, 4.5])
def test_a_depth_out_of_reach_is_refused(depth):
    with pytest.raises(ValueError, match="expected 1 to 4 layers"):
        laval.cost(routed(), depth=depth, peaks=PEAKS)


@pytest.mark.parametrize("depth", ["3", float("nan"), True, [3.0]])
def test_a_depth_that_is_no_number_is_refused(depth):
    with pytest.raises(ValueError, match="depth is .*; expected 1 to 4 layers"):
        laval.cost(routed(), depth=depth, peaks=PEAKS)


@pytest.mark.parametrize("share", ["half", float("nan"), [0.5, "x", 0.5], True, None])
def test_a_share_that_is_no_number_is_refused(share):
    with pytest.raises(ValueError, match="run_share" if share is not None else "depth and run_share"):
        laval.cost(routed(), run_share=share, peaks=PEAKS)


@pytest.mark.parametrize("model", ["smollm2", None, torch.nn.Linear(2, 2)])
def test_the_cost_of_what_is_no_model_is_refused(model):
    with pytest.raises(TypeError, match="model is .*; expected a model of transformers.*laval.load"):
        laval.cost(model, peaks=PEAKS)
