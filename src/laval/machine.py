"""This machine: its name, the key that measurements of it are kept under, and where they are kept."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch


def cache_folder() -> Path:
    """Where laval keeps what it can make again: $LAVAL_CACHE, or the `laval` folder among the platform's caches."""
    if os.environ.get("LAVAL_CACHE"):
        return Path(os.environ["LAVAL_CACHE"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "laval"
    variable = "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or Path.home() / ".cache") / "laval"


def device_name(device: torch.device) -> str:
    """The processor's or the card's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine_key(device: torch.device, dtype: torch.dtype) -> str:
    """What a measured time depends on beside the work: device, threads, torch and dtype."""
    threads, name = torch.get_num_threads(), str(dtype).removeprefix("torch.")
    return f"{device.type} | {device_name(device)} | {threads} threads | torch {torch.__version__} | {name}"
