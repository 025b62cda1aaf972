"""What was learned about this machine: measured, kept, found again, and dropped where it does not hold."""

from __future__ import annotations

import json

import pytest
import torch

import laval
from laval.measure import Peaks, learn
from laval.measure.learn import learn as learn_rule
from laval.measure.speed import decode_cell, prefill_cell
from laval.models import learned, using
from laval.models.learned import keep, known, rules_file
from laval.models.plugin import save_plugin
from laval.runtime import BreakEven
from laval.runtime.break_even import Measured
from tests.evaluate.models import routed, some_text

CURVE = [{"depth": depth, "taus": [tau] * 3} for depth, tau in ((2.0, 0.6), (3.0, 0.5), (4.0, 0.4))]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, and a machine of known rates."""
    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path / "cache"))
    peaks = Peaks("cpu", "float32", read_gb_s=10.0, copy_gb_s=10.0, gflop_s=50.0)
    for module in ("model", "speed"):
        monkeypatch.setattr(f"laval.measure.{module}.machine_peaks", lambda *arguments: peaks)


def curved(depth: float = 3.0, **overrides):
    model = routed(**overrides)
    model.config.curve = CURVE
    laval.set_depth(model, depth)
    return model


def at(ratio: float) -> Measured:
    return Measured(ratio, ratio - 0.01, ratio + 0.01, 12)


def rule_at(depth: float, ratio: float = 0.9) -> BreakEven:
    return BreakEven(depth, decode={1: at(ratio)}, prefill={64: at(1.1)})


def test_every_cell_is_measured_within_the_context():
    model = curved()  # context 128
    model.break_even = rule_at(3.0)
    rule = learn_rule(model, some_text(400), batches=(1, 3), lengths=(64, 512, 1024), seconds=0.5)
    assert list(rule.decode) == [1, 3] and list(rule.prefill) == [64, 128]
    for found in (*rule.decode.values(), *rule.prefill.values()):
        assert 0.05 < found.low <= found.ratio <= found.high < 20 and 1 <= found.rounds <= 40
    assert rule.depth == pytest.approx(3.0) and rule.device == "cpu"
    assert model.break_even == rule_at(3.0) and model.runtime == "auto"


def test_what_is_timed_skips_whatever_was_learned_before(monkeypatch):
    """The two ways that take turns: every layer, and the routers' choice."""
    model, depths = curved(2.0), {}
    model.break_even = rule_at(2.0, 0.1)

    def once(ways, *_, **__):
        for name, way in ways.items():
            with laval.models.recording(model) as record:
                way()
            depths.setdefault(name, []).append(record.run.double().sum(0).mean().item())
        return laval.measure.PairedTimes({"dense": (2.0, 3.0, 2.0), "skipping": (1.0, 1.0, 1.0)})

    monkeypatch.setattr(learn, "paired", once)
    rule = learn_rule(model, some_text(400), batches=(1, 2), lengths=(64,))
    assert depths["dense"] == [4, 4, 4] and all(depth < 4 for depth in depths["skipping"])
    found = Measured(2.0, 2.0, 3.0, 3)
    assert rule.decode == {1: found, 2: found} and rule.prefill == {64: found}


@pytest.mark.parametrize(
    ("model", "ids", "message"),
    [
        (lambda: laval.attach(routed().base, laval.DropLayers(())), [5], "skips nothing.*a plug-in"),
        (routed, [5], "not calibrated.*laval calibrate"),
        (curved, [], "ids is empty"),
        (
            lambda: laval.attach(routed().base, laval.FlexiDepth(layers=(1,), keep_kv=False)),
            [5],
            "keep_kv is False.*expected keep_kv=True",
        ),
    ],
)
def test_what_cannot_be_learned_is_said(model, ids, message):
    with pytest.raises(ValueError, match=message):
        learn_rule(model(), torch.tensor(ids))


def test_a_stock_model_cannot_learn():
    with pytest.raises(TypeError, match="expected an adaptive model"):
        learn_rule(routed().base, some_text())


def test_a_rule_is_found_again():
    model = curved()
    assert known(model) is None
    keep(model, rule_at(3.0))
    assert known(model) == rule_at(3.0) == known(curved())


def test_load_attaches_what_is_known(tmp_path):
    model = curved()
    save_plugin(model, tmp_path / "plugin")
    base = model.base
    assert laval.load(tmp_path / "plugin", base=base).break_even is None
    keep(model, rule_at(3.0))
    assert laval.load(tmp_path / "plugin", base=base).break_even == rule_at(3.0)
    assert laval.load(tmp_path / "plugin", base=base, weights="int8").break_even is None


def test_the_rule_goes_when_the_depth_moves_away_and_comes_back():
    model = curved()
    keep(model, rule_at(3.0))
    found = {depth: laval.set_depth(model, depth) and model.break_even for depth in (3.0, 3.5, 3.8, 2.5, 2.2, 3.0)}
    assert {depth for depth, rule in found.items() if rule == rule_at(3.0)} == {3.0, 3.5, 2.5}
    assert found[3.8] is found[2.2] is None


def test_the_nearest_depth_decides_and_a_new_rule_replaces_the_old():
    model = curved()
    for rule in (rule_at(3.0), rule_at(3.4, 1.2), rule_at(3.0, 0.7)):
        keep(model, rule)
    assert known(model).decode == {1: at(0.7)}
    laval.set_depth(model, 3.3)
    assert model.break_even.decode == {1: at(1.2)}
    assert sum(len(rules) for rules in learned.read(rules_file()).values()) == 2


@pytest.mark.parametrize("change", ["threads", "machine", "sizes", "routers", "dtype"])
def test_another_machine_or_model_knows_nothing(monkeypatch, change):
    model = curved()
    keep(model, rule_at(3.0))
    if change == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    elif change == "machine":
        monkeypatch.setattr("laval.machine.device_name", lambda device: "another")
    elif change == "sizes":
        model = curved(intermediate_size=128)
    elif change == "routers":
        model.config.method = model.config.method | {"router_width": 9}
    else:
        model = model.to(torch.bfloat16)
    assert known(model) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "[1]",
        lambda text: '{"cpu": 3}',
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"decode"', '"old"'),
        lambda text: text.replace("0.9", "NaN"),
        lambda text: text.replace("0.9", "null"),
        lambda text: text.replace('"1"', '"0"'),
        lambda text: text.replace('"1"', '"one"'),
        lambda text: text.replace('"rounds": 12', '"rounds": 0'),
    ],
)
def test_a_damaged_file_is_written_anew(damage):
    model = curved()
    keep(model, rule_at(3.0))
    rules_file().write_text(damage(rules_file().read_text()))
    assert known(model) is None
    keep(model, rule_at(3.0, 0.5))
    assert known(model) == rule_at(3.0, 0.5) and json.loads(rules_file().read_text())


def test_rules_without_intervals_are_ignored_with_a_reason(caplog):
    """As the first format had them."""
    model = curved()
    old = {learned.key_of(model): [{"depth": 3.0, "decode": {"1": 0.9}, "prefill": {}, "device": "cpu"}]}
    rules_file().parent.mkdir(parents=True)
    rules_file().write_text(json.dumps(old))
    assert known(model) is None and known(model) is None
    assert caplog.text.count("learn again: laval bench MODEL --learn") == 1 and "format 1" in caplog.text
    keep(model, rule_at(3.0))
    assert known(model) == rule_at(3.0)


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path / "file"))
    keep(curved(), rule_at(3.0))
    assert "not kept" in caplog.text and str(tmp_path / "file") in caplog.text


def test_cells_where_skipping_is_off_are_dense():
    model, ids = curved(2.0), some_text(40)
    model.break_even = BreakEven(2.0, decode={1: at(0.5)}, prefill={32: at(1.5)})
    step = decode_cell(model, ids, prompt=8, steps=4, rounds=2)
    assert step.mean_depth == 4 and step.ideal == pytest.approx(1)
    assert prefill_cell(model, ids, length=32, rounds=2).mean_depth < 4
    model.break_even = BreakEven(2.0, decode={1: at(1.5)}, prefill={32: at(0.5)})
    assert prefill_cell(model, ids, length=32, rounds=2).mean_depth == 4
    with using(model, "conditional"):  # asked for, so it is what is measured
        assert decode_cell(model, ids, prompt=8, steps=4, rounds=2).mean_depth < 4
