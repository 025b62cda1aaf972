"""The comparison: matched depths, complete records, nothing measured twice, nothing mixed up."""

from __future__ import annotations

import json

import pytest
import torch

from laval.evaluate import compare, curve_figure, curve_table, depth_curve, perplexity, text_batches
from laval.evaluate.book import stamp_of
from laval.models import dense
from tests.evaluate.models import routed, some_text

TEXTS = {"one": some_text(321), "two": some_text(321, seed=1)}
SETTINGS = {
    "calibration": text_batches(some_text(100, seed=2), length=32),
    "length": 32,
    "seeds": (0, 1),
    "progress": False,
}


@pytest.fixture(scope="module")
def records():
    return depth_curve(routed(), TEXTS, [3, 2.5], **SETTINGS)


def test_every_arm_is_at_its_depth(records):
    assert len(records) == 2 * (1 + 2 * 3 + 2)
    for record in records:
        assert record["depth"] == pytest.approx(record["wanted"], abs=0.03), record
        assert record["low"] <= record["ratio"] <= record["high"]
        assert record["tokens"] == 320
    statics = [record for record in records if record["method"] in ("shortgpt", "greedy")]
    assert len(statics) == 4 and all(len(record["layers"]) == 1 and record["wanted"] == 3 for record in statics)
    assert json.loads(json.dumps(records)) == records


def test_ratios_are_to_the_dense_model(records):
    for name, ids in TEXTS.items():
        with dense(routed()) as model:
            expected = perplexity(model, ids, length=32, progress=False).perplexity
        for record in (record for record in records if record["text"] == name):
            assert record["perplexity"] / record["ratio"] == pytest.approx(expected)


def test_an_interrupted_comparison_goes_on_where_it_stopped(tmp_path, monkeypatch, records):
    path, model = tmp_path / "curve.jsonl", routed()
    thresholds, reads = dict(model.policy.thresholds), []
    original = compare.Study.measured

    def measured(self, arm, *rest):
        if len(reads) == 5:
            raise KeyboardInterrupt
        reads.append(arm)
        return original(self, arm, *rest)

    monkeypatch.setattr(compare.Study, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        depth_curve(model, TEXTS, [3, 2.5], path=path, **SETTINGS)
    assert len(path.read_text().splitlines()) == 5
    reads[:] = []
    monkeypatch.setattr(compare.Study, "measured", lambda *args: reads.append(args) or original(*args))
    monkeypatch.setitem(compare.STATIC, "greedy", lambda *args: pytest.fail("the order was on record"))
    assert depth_curve(model, TEXTS, [3, 2.5], path=path, **SETTINGS) == records
    assert len(reads) == len(records) - 5
    assert depth_curve(model, TEXTS, [3, 2.5], path=path, **SETTINGS) == records
    assert len(reads) == len(records) - 5
    assert model.policy.thresholds == thresholds


def test_another_plugin_is_not_taken_for_this_one(tmp_path):
    path, settings = tmp_path / "curve.jsonl", dict(SETTINGS, controls=())
    first = depth_curve(routed(), {"one": TEXTS["one"]}, [3], path=path, **settings)
    changed = routed()
    with torch.no_grad():
        next(iter(changed.policy.adapters.values())).up_proj.weight.mul_(2)
    second = depth_curve(changed, {"one": TEXTS["one"]}, [3], path=path, **settings)
    third = depth_curve(routed(), {"one": TEXTS["two"]}, [3], path=path, **settings)
    assert len(path.read_text().splitlines()) == 5  # dense is measured once, whatever the plug-in
    assert len({record["perplexity"] for record in (first[1], second[1], third[1])}) == 3


def test_orders_may_be_given(tmp_path):
    path, settings = tmp_path / "curve.jsonl", {"length": 32, "progress": False, "path": tmp_path / "curve.jsonl"}
    given = {"orders": {"greedy": [3, 1]}, "controls": ["greedy"], **settings}
    first = depth_curve(routed(), {"one": TEXTS["one"]}, [3, 2], **given)
    assert [record["layers"] for record in first if record["method"] == "greedy"] == [[3], [3, 1]]
    assert depth_curve(routed(), {"one": TEXTS["one"]}, [3], controls=(), **settings) == first[:2]
    other = depth_curve(routed(), {"one": TEXTS["one"]}, [3], **{**given, "orders": {"greedy": [2]}})
    assert other[-1]["layers"] == [2] and len(path.read_text().splitlines()) == 6
    with pytest.raises(ValueError, match="orders.greedy has 1"):
        depth_curve(routed(), {"one": TEXTS["one"]}, [2], **{**given, "orders": {"greedy": [2]}})


def test_stamps_tell_things_apart():
    a = torch.arange(4)
    assert stamp_of(a) == stamp_of(a.clone())
    others = [a.view(2, 2), a.float(), a + 1, [a], {"a": a}, (a, a)]
    assert len({stamp_of(thing) for thing in [a, *others]}) == 7


def test_mistakes_are_told_before_anything_runs():
    with pytest.raises(ValueError, match="controls has 'lucky'"):
        depth_curve(routed(), TEXTS, [3], controls=["lucky"])
    with pytest.raises(ValueError, match="calibration is missing"):
        depth_curve(routed(), TEXTS, [3])
    with pytest.raises(ValueError, match="depth is 9"):
        depth_curve(routed(), TEXTS, [9], controls=())


def test_a_table_and_a_figure(records):
    table = curve_table(records)
    lines = table.splitlines()
    assert lines[0].startswith("**one**, dense perplexity") and "**two**" in table
    assert lines[2] == "| depth | flexidepth | shortgpt | greedy | random |"
    assert lines[4].startswith("| 3 | ") and lines[5].split(" | ")[2:4] == ["", ""]
    random = [record["ratio"] for record in records if record["method"] == "random" and record["text"] == "one"]
    assert f"{sum(random[:2]) / 2:.3f}" in lines[4]
    svg = curve_figure(records, "one")
    assert svg.startswith("<svg") and "greedy" in svg and "dense" not in svg.replace("relative to dense", "")
