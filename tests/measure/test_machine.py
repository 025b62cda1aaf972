import subprocess
from datetime import datetime

import pytest
import torch

from laval.measure import Peaks, machine, machine_facts, machine_peaks

CPU = torch.device("cpu")


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A cache folder of its own, and a measurement that only counts how often it is asked for."""
    calls = []

    def measure(device, dtype):
        calls.append(dtype)
        return Peaks("made up", str(dtype), len(calls), 2.0, 3.0)

    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "measure_peaks", measure)
    return calls


def test_measured_rates_are_plausible():
    peaks = machine.measure_peaks(CPU, torch.float32, buffer_bytes=4 << 20, seconds=0.01)
    assert 1e8 < peaks.bandwidth < 1e13 and 1e8 < peaks.flops < 1e15
    assert peaks.dtype == "float32" and peaks.bandwidth == peaks.read_gb_s * 1e9


def test_measured_once_per_dtype_and_thread_count(counted, monkeypatch):
    first = machine_peaks()
    assert machine_peaks("cpu", "float32") == first and len(counted) == 1
    machine_peaks(dtype=torch.bfloat16)
    assert machine_peaks() == first and len(counted) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    machine_peaks()
    assert len(counted) == 3


def test_refresh_measures_again_and_is_kept(counted):
    machine_peaks()
    assert machine_peaks(refresh=True).read_gb_s == 2 == machine_peaks().read_gb_s


@pytest.mark.parametrize("text", ["", "[1]", '{"cpu": 3}', '{"cpu": {"old": 1}}'])
def test_a_broken_cache_is_made_again(counted, text):
    path = machine.cache_folder() / "peaks.json"
    path.parent.mkdir()
    path.write_text(text)
    machine_peaks()
    assert machine_peaks().read_gb_s == 1 and len(counted) == 1


def test_a_cache_that_cannot_be_written_costs_only_time(counted, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path / "file"))
    assert [machine_peaks(CPU).read_gb_s, machine_peaks(CPU).read_gb_s] == [1, 2]
    assert "not kept" in caplog.text and str(tmp_path / "file") in caplog.text


def test_integer_types_have_no_peak():
    for dtype in ("int8", "float33", torch.int64):
        with pytest.raises(ValueError, match="floating-point"):
            machine_peaks(dtype=dtype)


def test_facts_say_what_a_result_needs():
    facts = machine_facts(dtype="bfloat16")
    assert facts["dtype"] == "bfloat16" and facts["device"] and facts["threads"] == torch.get_num_threads()
    assert facts["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert datetime.fromisoformat(facts["date"]).tzinfo is not None


def test_commit_only_of_tracked_files(tmp_path):
    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *author, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    tracked, other = tmp_path / "tracked", tmp_path / "other"
    tracked.write_text("1")
    other.write_text("1")
    git("add", "tracked")
    git("commit", "-qm", "one")
    assert machine.commit_of(tracked) == git("rev-parse", "HEAD") and machine.commit_of(other) is None
    tracked.write_text("2")
    assert machine.commit_of(tracked).endswith("-dirty")
