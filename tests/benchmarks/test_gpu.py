"""The GPU script works as far as a CPU can tell."""

import json
import sys

import pytest

from benchmarks import gpu


def test_every_kind_of_cell_is_measured(tmp_path, monkeypatch):
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(gpu, "SHARES", (0.4,))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--quick", "--dtype", "float32", "--out", str(out)])
    gpu.main()
    found = json.loads(out.read_text())
    assert found["left_out"] == [] and not [cell for cell in found["cells"] if "failed" in cell]
    decode = {cell["batch"]: cell for cell in found["cells"] if ", decode" in cell["cell"]}
    assert set(decode) == {1, 2} and all(abs(cell["mean_depth"] - 6) < 2 for cell in decode.values())
    prefill = [(cell["prompt"], cell["batch"]) for cell in found["cells"] if ", prefill" in cell["cell"]]
    assert sorted(prefill) == [(8, 1), (8, 2), (16, 1), (16, 2)]
    ways = [set(cell["times"]["functions"]) for cell in found["cells"] if ", generate" in cell["cell"]]
    assert ways == [{"stock", "dense", "stock, static cache"}] * 2


def test_a_failure_is_written_down_and_ends_nothing():
    def fails():
        raise RuntimeError("CUDA out of memory\nlong story")

    assert gpu.outcome(fails) == {"failed": "RuntimeError: CUDA out of memory"}
    assert gpu.first_call(fails) == {"failed": "RuntimeError: CUDA out of memory"}
    assert "seconds" in next(iter(gpu.first_call(lambda: None)))


def test_cells_after_the_time_are_named(tmp_path, monkeypatch, capsys):
    out = tmp_path / "gpu.json"
    given = ["gpu.py", "--device", "cpu", "--quick", "--seconds", "-1", "--dtype", "float32", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    gpu.main()
    found = json.loads(out.read_text())
    assert found["cells"] == [] and len(found["left_out"]) == 2 + 3 * 6
    assert "left out" in capsys.readouterr().out


@pytest.mark.gpu
def test_it_works_on_a_gpu(tmp_path, monkeypatch):
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--quick", "--out", str(out)])
    gpu.main()
    assert not [cell for cell in json.loads(out.read_text())["cells"] if "failed" in cell]
