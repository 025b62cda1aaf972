"""What this machine can do at best, measured once and kept; and the facts a result file must state."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from laval.files import atomic_write
from laval.machine import cache_folder, device_name, machine_key

log = logging.getLogger(__name__)
SECONDS_PER_PEAK = 0.3
BUFFER_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}  # far beyond any cache


@dataclass(frozen=True)
class Peaks:
    """Best rates measured: reading and copying in GB/s (a copy moves its size twice), products in GFLOP/s."""

    device: str
    dtype: str
    read_gb_s: float
    copy_gb_s: float
    gflop_s: float

    @property
    def flops(self) -> float:
        """Floating-point operations per second."""
        return self.gflop_s * 1e9

    @property
    def bandwidth(self) -> float:
        """Bytes read per second."""
        return self.read_gb_s * 1e9


def machine_peaks(
    device: str | torch.device = "cpu", dtype: torch.dtype | str = torch.float32, refresh: bool = False
) -> Peaks:
    """The peaks of this machine, measured in under 3 seconds or read from the cache folder.

    Kept per device, thread count, torch version and dtype. Measure on a quiet machine; refresh=True measures again.
    Errors: ValueError for a dtype that is not floating point.
    """
    device, dtype = torch.device(device), _dtype(dtype)
    path, key = cache_folder() / "peaks.json", machine_key(device, dtype)
    known = _read(path)
    if not refresh and key in known:
        return Peaks(**known[key])
    peaks = measure_peaks(device, dtype)
    try:
        with atomic_write(path, "w") as file:
            json.dump(_read(path) | {key: asdict(peaks)}, file, indent=1)
    except OSError as error:  # read-only or full: only the next measurement costs its seconds again
        log.warning("the measured rates of this machine are not kept in %s: %s", path, error)
    return peaks


def measure_peaks(
    device: torch.device, dtype: torch.dtype, buffer_bytes: int | None = None, seconds: float = SECONDS_PER_PEAK
) -> Peaks:
    """Measure, past the cache. buffer_bytes: size of the memory read and copied."""
    source = torch.ones((buffer_bytes or BUFFER_BYTES[device.type]) // 4, device=device)
    size, matrix = source.numel() * 4, source.view(-1, 1 << 12)
    vector, target = torch.ones(1 << 12, device=device), torch.empty_like(source)
    # reductions and matrix-vector products reach different rates: the better one is what the memory can do
    read = min(_best(lambda: source.sum(), device, seconds), _best(lambda: matrix.mv(vector), device, seconds))
    copy = _best(lambda: target.copy_(source), device, seconds)
    gflop_s = _product_rate(device, dtype, seconds) / 1e9
    return Peaks(device_name(device), _name(dtype), size / read / 1e9, 2 * size / copy / 1e9, gflop_s)


def machine_facts(device: str | torch.device = "cpu", dtype: torch.dtype | str = torch.float32) -> dict[str, Any]:
    """What a result file states: device, dtype, versions, threads, commit (None outside git), date in UTC."""
    return {
        "device": device_name(torch.device(device)),
        "dtype": _name(_dtype(dtype)),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in ("torch", "transformers", "laval")}
        | {"python": platform.python_version()},
        "commit": commit_of(Path(__file__)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit_of(path: Path) -> str | None:
    """The commit that holds `path`, with -dirty when the tree was changed; None if git does not track it."""
    # a package installed inside some other repository must not claim that repository's commit
    if _git(path.parent, "ls-files", "--error-unmatch", path.name) is None:
        return None
    return _git(path.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _product_rate(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """FLOP/s of the product of two square matrices, grown until one product takes 20 ms."""
    side = 256
    while True:
        a = torch.ones(side, side, device=device, dtype=dtype)
        once = _best(lambda a=a: a @ a, device, 0)
        if once > 0.02 or side >= 8192:
            break
        side *= 2
    return 2 * side**3 / min(once, _best(lambda: a @ a, device, seconds))


def _best(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Shortest of the repetitions that fit into `seconds` (two at least, after one that does not count)."""
    call()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _read(path: Path) -> dict[str, dict]:
    """Records kept so far; none when the file is missing or cannot be read (it can be made again)."""
    fields = set(Peaks.__dataclass_fields__)
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {key: record for key, record in known.items() if set(record) == fields}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype={dtype!r}: expected a floating-point type such as 'float32' or 'bfloat16'")
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
