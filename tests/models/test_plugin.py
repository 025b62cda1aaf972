import errno
import json
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from laval.models import attach, plugin
from laval.models.plugin import load_plugin, save_plugin
from laval.models.thresholds import logit, tau_of
from laval.skip import DropLayers, RandomRoutes
from tests.models.folders import NAME, assert_came_back, base, edit, edit_weights, logits_of, routed, tiny_tokenizer


@pytest.mark.usefixtures("no_pickles")
def test_round_trip_is_exact(saved):
    model, folder = saved
    loaded = load_plugin(folder, base())
    assert_came_back(loaded, model)
    assert loaded.policy.thresholds == model.policy.thresholds
    assert loaded.config.curve == model.config.curve and loaded.config.method == model.config.method
    assert sorted(os.listdir(folder)) == ["README.md", "laval.json", "plugin.safetensors"]
    assert (folder / "plugin.safetensors").stat().st_mode == (folder / "laval.json").stat().st_mode


def test_routes_are_mixed_and_base_alone_differs(saved):
    model, _ = saved
    run = torch.stack([route.run for route in model(input_ids=torch.arange(3, 40)[None]).routes])
    assert run.any(-1).all() and not run.all(-1).any()
    assert not torch.equal(logits_of(model), logits_of(model.base))


def test_only_the_plugin_is_saved(saved):
    model, folder = saved
    assert load_file(folder / "plugin.safetensors").keys() == model.policy.state_dict().keys()


def test_half_precision_on_disk_and_the_base_dtype_in_memory(saved, tmp_path):
    model, _ = saved
    save_plugin(model, tmp_path / "half", dtype=torch.bfloat16)
    on_disk = load_file(tmp_path / "half" / "plugin.safetensors")
    assert {tensor.dtype for tensor in on_disk.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "half" / "laval.json").read_text())["dtype"] == "bfloat16"
    for dtype in (torch.float64, torch.bfloat16):
        loaded = load_plugin(tmp_path / "half", base().to(dtype))
        assert {p.dtype for p in loaded.policy.parameters()} == {dtype}
        assert all(torch.equal(on_disk[name].to(dtype), p) for name, p in loaded.policy.state_dict().items())


@pytest.mark.parametrize("method", [DropLayers((1, 3)), RandomRoutes((1, 2), rate=0.3, seed=5)])
def test_methods_without_weights(method, tmp_path):
    model = attach(base(), method)
    save_plugin(model, tmp_path / "plugin")
    assert_came_back(load_plugin(tmp_path / "plugin", base()), model)


@given(st.floats(1e-300, 1 - 1e-15))
def test_thresholds_set_by_a_tau_are_restored_to_the_last_bit(tau):
    assert logit(tau_of(logit(tau))) == logit(tau)


@given(st.floats(allow_nan=False))
def test_every_threshold_has_a_tau(threshold):
    tau = tau_of(threshold)
    assert 0 < tau < 1
    if -30 < threshold < 15:
        assert math.isclose(logit(tau), threshold, rel_tol=1e-9, abs_tol=1e-15)


def test_thresholds_at_infinity_are_saved(tmp_path):
    model = routed(base())
    model.policy.thresholds = {2: -math.inf, 3: math.inf}
    save_plugin(model, tmp_path / "plugin")
    assert_came_back(load_plugin(tmp_path / "plugin", base()), model)


def test_the_base_is_found_by_its_name(tmp_path):
    stock = base()
    stock.save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    model = routed(base(str(tmp_path / "base")))
    save_plugin(model, tmp_path / "plugin")
    loaded = load_plugin(tmp_path / "plugin", dtype=torch.float32)
    assert_came_back(loaded, model)
    assert loaded.tokenizer("de laval").input_ids == [5, 6]


def test_the_default_base_comes_with_its_tokenizer(saved, monkeypatch, tmp_path):
    _, folder = saved
    base().save_pretrained(tmp_path / "cache")
    monkeypatch.setattr("laval.models.smollm2.smollm2_folder", lambda: tmp_path / "cache")
    edit(folder, lambda record: record.update(base_name="huggingfacetb/SmolLM2-135M-Instruct"))
    assert load_plugin(folder).base.config._name_or_path == "huggingfacetb/SmolLM2-135M-Instruct"


@pytest.mark.parametrize("name", [NAME, "laval/tiny-llama", "/somewhere/TINY-LLAMA/", "", None])
def test_a_base_of_the_same_name_fits(saved, name):
    model, folder = saved
    assert load_plugin(folder, base(name)).policy.thresholds == model.policy.thresholds


def test_a_base_of_another_name_needs_permission(saved):
    with pytest.raises(ValueError, match="base is org/other.*made for Laval/Tiny-Llama.*any_base=True"):
        load_plugin(saved[1], base("org/other"))
    load_plugin(saved[1], base("org/other"), any_base=True)


@pytest.mark.parametrize("size", [{"hidden_size": 32}, {"vocab_size": 64}, {"num_hidden_layers": 6}])
def test_a_base_of_other_sizes_names_the_size(saved, size):
    (field, value), stock = *size.items(), base(**size)
    with pytest.raises(ValueError, match=f"{field} is {value}, expected"):
        load_plugin(saved[1], stock, any_base=True)


DAMAGED_RECORDS = {
    "unreadable": (lambda f: (f / "laval.json").write_text("{"), "laval.json: not readable as JSON.*copy it again"),
    "no object": (lambda f: (f / "laval.json").write_text("[]"), "expected a JSON object, found list"),
    "absent": (lambda f: (f / "laval.json").unlink(), "laval.json: not found"),
    "newer": (lambda f: edit(f, lambda r: r.update(format=99)), "format is 99.*upgrade"),
    "method": (lambda f: edit(f, lambda r: r["method"].update(name="flexdepth")), "did you mean 'flexidepth'"),
    "field": (lambda f: edit(f, lambda r: r["method"].update(tao=0.5)), "tao: unknown key; did you mean 'tau'"),
    "key": (lambda f: edit(f, lambda r: r.update(tauz=[])), "tauz: unknown key; did you mean 'taus'"),
    "tau": (lambda f: edit(f, lambda r: r["method"].update(tau=1.5)), "tau is 1.5"),
    "taus": (lambda f: edit(f, lambda r: r.update(taus=[0.5])), "expected 2 numbers between 0 and 1"),
    "curve": (lambda f: edit(f, lambda r: r["curve"][0].pop("taus")), "expected 2 numbers between 0 and 1"),
    "curve without taus": (lambda f: edit(f, lambda r: r["curve"][0].update(taus=None)), "taus are None; expected 2"),
    "curve of words": (lambda f: edit(f, lambda r: r["curve"][0].update(taus=["a", "b"])), "taus are .*expected 2"),
    "curve without depth": (lambda f: edit(f, lambda r: r["curve"][0].pop("depth")), "depth is None; expected a mean"),
    "curve nowhere": (lambda f: edit(f, lambda r: r["curve"][0].update(depth=math.nan)), "depth is nan"),
    "list for a name": (lambda f: edit(f, lambda r: r["method"].update(name=["flexidepth"])), "method.name is"),
    "bottomless": (lambda f: (f / "laval.json").write_text("[" * 100_000), "laval.json: not readable as JSON"),
    "layer": (lambda f: edit(f, lambda r: r["method"].update(layers=[2, 9])), r"layers \[2, 9\] cannot be skipped"),
}
DAMAGED_WEIGHTS = {
    "absent": (lambda f: (f / "plugin.safetensors").unlink(), "plugin.safetensors: not found"),
    "cut": (lambda f: os.truncate(f / "plugin.safetensors", 900), "plugin.safetensors: damaged or cut off"),
    "rubbish": (lambda f: (f / "plugin.safetensors").write_bytes(b"x" * 99), "plugin.safetensors: damaged or cut off"),
    "missing": (lambda f: edit_weights(f, lambda t: t.pop("routers.2.norm")), "missing: routers.2.norm"),
    "extra": (lambda f: edit_weights(f, lambda t: t.update(x=torch.ones(1))), "unexpected: x"),
    "shape": (
        lambda f: edit_weights(f, lambda t: t.update({"routers.2.norm": torch.ones(5)})),
        r"another shape: routers.2.norm \[5\] \(expected \[4\]\)",
    ),
    "integers": (
        lambda f: edit_weights(f, lambda t: t.update({"routers.2.norm": torch.ones(4, dtype=torch.int8)})),
        r"routers.2.norm \(torch.int8\); convert",
    ),
    "eight bits": (
        lambda f: edit_weights(f, lambda t: t.update({"routers.2.norm": torch.ones(4).to(torch.float8_e4m3fn)})),
        r"routers.2.norm \(torch.float8_e4m3fn\); convert",
    ),
    "nan": (lambda f: edit_weights(f, lambda t: t["routers.3.norm"].fill_(torch.nan)), "not finite.*routers.3.norm"),
}
DAMAGED = {**DAMAGED_RECORDS, **{f"weights {name}": case for name, case in DAMAGED_WEIGHTS.items()}}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_and_leaves_the_base_alone(saved, case):
    damage, message = DAMAGED[case]
    damage(saved[1])
    stock = base()
    before = logits_of(stock)
    with pytest.raises(ValueError, match=message):
        load_plugin(saved[1], stock)
    assert torch.equal(logits_of(stock), before)


def test_a_plugin_without_a_base_name_asks_for_the_base(saved):
    edit(saved[1], lambda record: record.update(base_name=None))
    with pytest.raises(ValueError, match="names no base model.*base="):
        load_plugin(saved[1])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_weights_that_are_not_finite_are_not_saved(saved):
    model, folder = saved
    before = contents(folder)
    model.policy.routers["2"].norm.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="not saved: not finite.*routers.2.norm"):
        save_plugin(model, folder)
    assert contents(folder) == before


def test_a_full_disk_loses_nothing(saved, monkeypatch):
    model, folder = saved
    before = contents(folder)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(plugin, "save_file", full)
    with pytest.raises(OSError, match="no space left to save"):
        save_plugin(model, folder)
    assert contents(folder) == before and os.listdir(folder.parent) == ["plugin"]


def test_a_swap_cut_off_is_finished(saved):
    model, folder = saved
    os.rename(folder, folder.with_name(".plugin.old"))
    assert load_plugin(folder, base()).policy.thresholds == model.policy.thresholds


def test_the_card_is_written_or_taken(saved, tmp_path):
    model, folder = saved
    assert 'base_model: "Laval/Tiny-Llama"' in (folder / "README.md").read_text()
    save_plugin(model, folder, card="# Mine\n")
    assert (folder / "README.md").read_text() == "# Mine\n"


def test_a_plugin_that_does_not_fit_leaves_the_base_alone(saved):
    _, folder = saved
    edit(folder, lambda record: record.update(taus=[0.5]))
    caller = base()
    with pytest.raises(ValueError, match="taus are"):
        load_plugin(folder, caller)
    assert all(parameter.requires_grad for parameter in caller.parameters())
