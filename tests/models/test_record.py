"""laval.json and the weights beside it are read strictly, and nothing is written that could not be read."""

import math
import os

import pytest
import torch

from laval.models.plugin import load_plugin, save_plugin
from tests.models.folders import base, edit, edit_weights, logits_of, routed


def twice(folder, key):
    """The record with `key` written once more, in front."""
    path = folder / "laval.json"
    path.write_text(path.read_text().replace(f'"{key}":', f'"{key}": null, "{key}":', 1))


def point(**fields):
    return lambda folder: edit(folder, lambda record: record["curve"][1].update(fields))


LAX = {
    "key twice": (lambda f: twice(f, "taus"), "laval.json: .*key 'taus' is given twice"),
    "inner key twice": (lambda f: twice(f, "hidden_size"), "laval.json: .*key 'hidden_size' is given twice"),
    "format 0": (lambda f: edit(f, lambda r: r.update(format=0)), "laval.json: .*format is 0; expected 1"),
    "format -1": (lambda f: edit(f, lambda r: r.update(format=-1)), "laval.json: .*format is -1; expected 1"),
    "format in words": (lambda f: edit(f, lambda r: r.update(format="1")), "laval.json: .*format: expected int"),
    "format true": (lambda f: edit(f, lambda r: r.update(format=True)), "laval.json: .*format: expected int"),
    "dtype a number": (lambda f: edit(f, lambda r: r.update(dtype=16)), "laval.json: .*dtype: expected str"),
    "dtype unknown": (
        lambda f: edit(f, lambda r: r.update(dtype="nn")),
        "laval.json: .*dtype is 'nn'; expected float16",
    ),
    "shape unknown": (lambda f: edit(f, lambda r: r["base_shape"].update(heads=4)), "base_shape.heads: unknown key"),
    "shape missing": (
        lambda f: edit(f, lambda r: r["base_shape"].pop("vocab_size")),
        "base_shape.vocab_size: is missing",
    ),
    "shape in words": (
        lambda f: edit(f, lambda r: r["base_shape"].update(vocab_size="x")),
        "vocab_size: expected int",
    ),
    "point unknown": (point(nat=1.0), r"curve\[1\]: nat: unknown key; did you mean 'nats'"),
    "nats in words": (point(nats="few"), r"curve\[1\] .*nats is 'few'; expected a finite number"),
    "nats nan": (point(nats=math.nan), r"curve\[1\] .*nats is nan; expected a finite number"),
    "depth negative": (point(depth=-1.0), r"curve\[1\]: depth is -1.0; expected a mean number of layers from 0 to 4"),
    "depth too deep": (point(depth=4.5), r"curve\[1\]: depth is 4.5; expected a mean number of layers from 0 to 4"),
}


@pytest.mark.parametrize("case", LAX)
def test_a_record_is_read_strictly(saved, case):
    damage, message = LAX[case]
    damage(saved[1])
    with pytest.raises(ValueError, match=message):
        load_plugin(saved[1], base())


@pytest.mark.parametrize("nats", [None, 0, 2.5])
def test_a_point_may_lack_nats(saved, nats):
    edit(saved[1], lambda record: record["curve"][1].update(nats=nats))
    assert load_plugin(saved[1], base()).config.curve[1]["nats"] == nats


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 1e300), (torch.bfloat16, 1e39), (torch.float16, 1e6)])
def test_weights_that_the_base_cannot_hold_are_named(saved, dtype, largest):
    def grow(tensors):
        tensors["routers.2.norm"] = tensors["routers.2.norm"].double()
        tensors["routers.2.norm"][0] = -largest

    edit_weights(saved[1], grow)
    with pytest.raises(ValueError, match=rf"plugin.safetensors: too large .*routers.2.norm .*{dtype} ends.*wider"):
        load_plugin(saved[1], base().to(dtype))
    assert torch.isfinite(logits_of(load_plugin(saved[1], base().double()))).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_not_saved_in_a_type_too_narrow(saved, dtype):
    model, folder = saved
    before = sorted(os.listdir(folder)), (folder / "laval.json").read_bytes()
    model.policy.routers["2"].norm.data.fill_(torch.finfo(torch.float32).max)
    with pytest.raises(ValueError, match=f"not saved: too large .*routers.2.norm .*{dtype} ends.*wider"):
        save_plugin(model, folder, dtype=dtype)
    assert (sorted(os.listdir(folder)), (folder / "laval.json").read_bytes()) == before


def save_whole(model, folder):
    model.save_pretrained(folder)


@pytest.mark.parametrize("save", [save_plugin, save_whole])
@pytest.mark.parametrize("field", ["nats", "depth"])
@pytest.mark.parametrize("value", [math.nan, math.inf, "2"])
def test_a_curve_that_says_nothing_is_not_saved(save, field, value, tmp_path):
    model = routed(base())
    model.config.curve = [{"depth": depth, "taus": [0.4, 0.6], "nats": 2.0} for depth in (3.0, 4.0)]
    model.config.curve[1][field] = value
    with pytest.raises(ValueError, match=rf"not saved: curve\[1\].*{field} is {value!r}; expected .*calibrate again"):
        save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
