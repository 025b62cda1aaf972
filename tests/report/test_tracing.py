"""Traces are what really ran: forwards, generations, batches with pads."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.models import recording
from laval.report.tracing import trace_generation
from tests.evaluate.models import routed, some_text


def test_a_trace_says_what_the_forward_did():
    model, ids = routed(), some_text(20)[None]
    made = laval.trace(model, ids)
    with torch.no_grad():
        routes = model(ids).routes
    for layer, route in zip(model.policy.layers, routes, strict=True):
        assert torch.equal(made.run[layer], route.run)
        assert torch.allclose(made.gate[layer], route.gate)
        assert torch.equal(made.run[layer], made.gate[layer] > made.tau[layer])
    assert made.run[0].all() and not made.routed[0]
    assert made.tokens == [[str(i) for i in ids[0].tolist()]]
    assert model.recording is None


def test_thresholds_reach_the_trace():
    model = routed()
    model.policy.set_thresholds([0.2, 0.5, 0.9])
    assert laval.trace(model, some_text(6)[None]).tau.tolist() == pytest.approx([0.5, 0.2, 0.5, 0.9])


def test_pads_on_either_side_change_nothing():
    model, ids = routed(), some_text(12)
    alone = laval.trace(model, ids[None])
    pads = torch.zeros(3, dtype=torch.int64)
    rows = torch.stack([torch.cat([pads, ids]), torch.cat([ids, pads])])
    made = laval.trace(model, rows, (rows != 0).long())
    assert made.count == 24
    for row in made.rows():
        assert row.depth == alone.rows()[0].depth


def test_dense_and_fixed_methods_have_no_gates():
    model = routed()
    with laval.dense(model):
        made = laval.trace(model, some_text(5)[None])
    assert made.gate is None and made.mean_depth == 4
    fixed = laval.trace(laval.attach(model, laval.DropLayers((2,))), some_text(5)[None])
    assert fixed.gate is None and fixed.mean_depth == 3 and not fixed.run[2].any()


def test_training_mode_and_recordings_are_left_as_they_were():
    model = routed().train()
    with recording(model) as outer:
        laval.trace(model, some_text(5)[None])
        assert model.recording is outer and not outer.runs
    assert model.training


def test_a_generation_is_traced_token_by_token():
    model, ids = routed(), some_text(9)[None]
    made = trace_generation(model, ids, max_new_tokens=7, do_sample=False)
    plain = model.generate(ids, max_new_tokens=7, do_sample=False)
    assert torch.equal(made.ids, plain) and made.trace.run.shape == (4, 1, plain.shape[1])
    assert made.trace.new_from == [9]
    # the same routes as one forward over the finished text: prefill, steps and closing step agree with it
    assert torch.equal(made.trace.run, laval.trace(model, plain).run)


def test_rows_that_end_early_leave_their_pads_out():
    model, ids = routed(), torch.stack([some_text(6), some_text(6, seed=3)])
    free = model.generate(ids, max_new_tokens=8, do_sample=False)
    stop = int(free[0, 8])  # the third new token of the first row ends it
    made = trace_generation(model, ids, max_new_tokens=8, do_sample=False, eos_token_id=stop, pad_token_id=0)
    first = (made.ids[0, 6:] == stop).nonzero()[0].item()
    assert made.trace.valid[0].sum() == 6 + first + 1
    row = made.ids[0, : 6 + first + 1]
    assert made.trace.rows()[0].depth == laval.trace(model, row[None]).rows()[0].depth


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences"])
def test_rows_that_change_places_are_refused(name):
    with pytest.raises(ValueError, match=name):
        trace_generation(routed(), some_text(4)[None], **{name: 2})


@pytest.mark.parametrize("ids", [some_text(4), torch.empty(1, 0, dtype=torch.int64), [[1, 2]]])
def test_ids_must_be_rows_of_tokens(ids):
    with pytest.raises(ValueError, match="input_ids"):
        laval.trace(routed(), ids)


def test_facts_name_model_and_method():
    facts = laval.trace(routed(), some_text(4)[None]).facts
    assert facts["Method"] == "flexidepth" and facts["Routed layers"].startswith("1, 2, 3")
