import json
import math

import pytest
import torch

from laval.report import Trace
from tests.report.traces import trace

ROWS = [["the", " flow", " speeds"], ["x", "1"]]


def test_numbers_equal_a_count_by_hand():
    run = torch.tensor([[[1, 1, 1]], [[1, 0, 1]], [[1, 0, 0]]]).bool()
    seen = Trace(tokens=[["<pad>", "a", "b"]], run=run, valid=torch.tensor([[False, True, True]]))
    assert seen.depth.tolist() == [[3, 1, 2]]
    assert seen.mean_depth == 1.5
    assert seen.layer_rates.tolist() == [1.0, 0.5, 0.0]
    assert seen.skipped_share == 0.5
    assert (seen.layers, seen.count, seen.margin) == (3, 2, None)


def test_pads_never_count():
    bare, padded = trace(ROWS[:1]), trace(ROWS[:1])
    run = torch.cat([torch.ones(6, 1, 4, dtype=torch.bool), bare.run], -1)
    gate = torch.cat([torch.full((6, 1, 4), 0.5), bare.gate], -1)
    valid = torch.tensor([[False] * 4 + [True] * 3])
    padded = Trace(tokens=[["<pad>"] * 4 + ROWS[0]], run=run, valid=valid, gate=gate)
    assert padded.mean_depth == bare.mean_depth
    assert padded.margin == bare.margin > 0
    assert padded.layer_rates.equal(bare.layer_rates)
    assert padded.rows() == bare.rows()


def test_margin_is_the_nearest_gate_with_one_threshold_or_one_per_layer():
    seen = trace(ROWS)
    nearest = min(abs(g - 0.5) for g in seen.gate[:, seen.valid].flatten().tolist() if not math.isnan(g))
    assert seen.margin == pytest.approx(nearest)
    tau = torch.linspace(0.2, 0.7, 6)
    per_layer = trace(ROWS, tau=tau)
    distance = (per_layer.gate[:, per_layer.valid] - tau[:, None]).abs()
    assert per_layer.margin == pytest.approx(float(distance[1:].min()))


def test_rows_name_the_skipped_layers_and_move_new_from_past_the_pads():
    seen = trace(ROWS, new_from=[2, 2])
    for b, row in enumerate(seen.rows()):
        kept = seen.valid[b]
        assert row.pieces == ROWS[b]
        assert [6 - len(layers) for layers in row.skipped] == row.depth == seen.depth[b][kept].tolist()
    assert [row.new_from for row in seen.rows()] == [2, 1]


def test_segments_start_where_the_number_changes():
    seen = trace([["a", "b", "c"]], segments=torch.tensor([[0, 0, 1]]))
    assert seen.rows()[0].starts == [True, False, True]


def test_json_holds_the_same_numbers_and_null_for_nothing():
    seen = trace(ROWS, facts={"Model": "tiny"})
    document = json.loads(seen.to_json())
    assert document["mean_depth"] == seen.mean_depth
    assert document["layer_rates"] == seen.layer_rates.tolist()
    assert document["rows"][1]["pieces"] == ROWS[1]
    empty = json.loads(trace([[]], pads=2).to_json())
    assert empty["mean_depth"] is None and empty["layer_rates"] == [None] * 6


@pytest.mark.parametrize(
    "change, says",
    [
        ({"run": torch.ones(2, 1, 3)}, "run is float32"),
        ({"run": [[True]]}, "run is list"),
        ({"tokens": []}, "tokens has 0 rows"),
        ({"tokens": [["a"]]}, r"tokens\[0\] has 1 pieces"),
        ({"valid": torch.ones(1, 2, dtype=torch.bool)}, r"valid is bool \[1, 2\]"),
        ({"valid": torch.ones(1, 3)}, "valid is float32"),
        ({"gate": torch.ones(1, 3)}, r"gate is float32 \[1, 3\]"),
        ({"gate": torch.ones(2, 1, 3), "tau": 1.0}, "tau is 1.0"),
        ({"gate": torch.ones(2, 1, 3), "tau": torch.full((3,), 0.5)}, r"tau has shape \[3\]"),
        ({"segments": torch.zeros(1, 3)}, "segments is float32"),
        ({"new_from": [4]}, r"new_from is \[4\]"),
        ({"new_from": []}, r"new_from is \[\]"),
    ],
)
def test_a_wrong_field_is_named(change, says):
    run = torch.ones(2, 1, 3, dtype=torch.bool)
    right = {"tokens": [["a", "b", "c"]], "run": run, "valid": run[0]}
    Trace(**right)
    with pytest.raises(ValueError, match=says):
        Trace(**(right | change))
