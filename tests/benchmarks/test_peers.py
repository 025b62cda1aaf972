"""What the comparison with peers counts and keeps is what happened."""

import json

import pytest
import torch

from benchmarks import peers
from laval.measure.machine import Peaks
from tests.models.folders import routed

NEW, ROUNDS = 5, 2


@pytest.fixture
def subject(monkeypatch) -> peers.Subject:
    monkeypatch.setattr(peers, "PROMPT", 12)
    monkeypatch.setattr(peers, "machine_peaks", lambda: Peaks("test", "float32", 10.0, 20.0, 100.0))
    return peers.Subject(routed(), batch=1, new=NEW)


def prompts(rows: int = 1) -> list[torch.Tensor]:
    ids = torch.randint(3, 128, (ROUNDS + peers.WARM, rows, 12), generator=torch.Generator().manual_seed(1))
    return list(ids)


def test_dense_and_lossless_keep_stock_tokens(subject):
    for name in (peers.STOCK, "transformers static", "laval dense", "laval lossless"):
        record = peers.measured(subject, peers.WAYS[name], prompts())
        assert (record["same_tokens"], record["same_rows"]) == (ROUNDS * NEW, ROUNDS), name
        assert record["rounds"] == ROUNDS and len(record["seconds_a_token"]["own"]) == ROUNDS
        json.dumps(record)


def test_skipping_reports_depth_and_bytes_of_its_own_tokens(subject):
    record = peers.measured(subject, lambda s: peers.skipped(s, s.model, None), prompts())
    assert 2 <= record["mean_depth"] <= 4
    assert record["bytes_read_per_step"] != peers.read_by(subject, subject.model, "full")


def test_another_model_is_not_called_the_same(subject):
    other = routed(start=-9.0)  # skips whatever may be skipped
    record = peers.measured(subject, lambda s: peers.of_laval(s, other, "auto"), prompts())
    assert record["same_rows"] < ROUNDS


def test_int8_reads_fewer_bytes(subject):
    wide, narrow = (peers.WAYS[name](subject).read for name in ("laval dense", "laval int8 dense"))
    assert narrow < 0.6 * wide


def test_too_few_tokens_are_an_error(subject):
    way = peers.Way(lambda ids, new, clock: [[1] * (new - 1)])
    with pytest.raises(ValueError, match=r"\[4\] new tokens; expected 5"):
        peers.timed(way, prompts()[0], NEW)


def test_texts_part_at_their_first_difference():
    assert peers.leading([1, 2, 3], [1, 9, 3]) == 1
    assert peers.leading([1, 2], [1, 2]) == 2


def test_a_peer_that_is_missing_or_fails_is_named(subject, monkeypatch):
    monkeypatch.setattr(peers, "packaged_gguf", lambda: None)
    assert "pip install" in peers.outcome(subject, "llama.cpp", prompts())["missing"]
    assert "one sequence" in peers.outcome(peers.Subject(None, 2, NEW), "laval lossless", prompts(2))["missing"]

    def broken(subject):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setitem(peers.WAYS, "transformers compiled", broken)
    found = peers.outcome(subject, "transformers compiled", prompts())
    assert found == {"missing": "failed: RuntimeError: no compiler"}
    monkeypatch.setitem(peers.WAYS, "laval dense", broken)  # our own failures are no result
    with pytest.raises(RuntimeError):
        peers.outcome(subject, "laval dense", prompts())


def test_the_table_has_a_row_for_every_way(subject):
    record = {"way": "laval dense"} | peers.measured(subject, peers.WAYS["laval dense"], prompts())
    assert peers.table([record, {"way": "llama.cpp", "missing": "pip install it"}]).row_count == 2
