"""Which way to carry out a call: from its sizes, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from laval.ops.rows import MOST
from laval.runtime.break_even import BreakEven

RUNTIMES = ("auto", "masked", "grouped", "conditional", "full", "dense")


@dataclass(frozen=True)
class Choice:
    """The way chosen for one call, and why. quick: with kernels made for a few rows, equal up to rounding."""

    step: str
    reason: str
    quick: bool = False


def choose(
    runtime: str,
    rows: int,
    gradient: bool,
    device: str = "cpu",
    rule: BreakEven | None = None,
    step: bool = False,
) -> Choice:
    """From the wanted runtime, the rows B * T of the call, the device, and whether gradients are needed.

    rule: what was learned about this machine; heard by "auto" alone, and never where gradients are needed. step: the
    call is a single step with a cache.
    """
    heard = rule is not None and runtime == "auto" and not gradient and rule.device == device
    loss = rule.loses(rows, step) if heard else None
    way, reason = pick(runtime, rows, gradient) if loss is None else ("full", loss)
    return Choice(way, reason, quick=way != "masked" and device == "cpu" and rows <= MOST and not gradient)


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
