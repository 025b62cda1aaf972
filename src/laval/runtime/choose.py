"""Which way to carry out a call: from its sizes, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from laval.ops.rows import MOST

RUNTIMES = ("auto", "masked", "grouped", "conditional", "full", "dense")


@dataclass(frozen=True)
class Choice:
    """The way chosen for one call, and why. quick: with kernels made for a few rows, equal up to rounding."""

    step: str
    reason: str
    quick: bool = False


def choose(runtime: str, rows: int, gradient: bool, device: str = "cpu") -> Choice:
    """From the wanted runtime, the rows B * T of the call, the device, and whether gradients are needed."""
    step, reason = pick(runtime, rows, gradient)
    return Choice(step, reason, quick=step != "masked" and device == "cpu" and rows <= MOST and not gradient)


def pick(runtime: str, rows: int, gradient: bool) -> tuple[str, str]:
    if runtime != "auto":
        return runtime, f"runtime={runtime!r} was asked for"
    if gradient:
        return "masked", "gradients reach the router through the branch not taken"
    if rows == 1:
        return "conditional", "one row: a skipped layer's weights are never read"
    return "grouped", f"{rows} rows: those that run are computed together"


def check_runtime(runtime: str) -> str:
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is {runtime!r}; expected one of {', '.join(RUNTIMES)}")
    return runtime
