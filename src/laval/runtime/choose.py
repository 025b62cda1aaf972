"""Which way to carry out a call: from its sizes, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIMES = ("auto", "masked", "grouped", "conditional", "dense")


@dataclass(frozen=True)
class Choice:
    """The way chosen for one call, and why."""

    step: str
    reason: str


def choose(runtime: str, rows: int, gradient: bool) -> Choice:
    """From the wanted runtime, the rows B * T of the call and whether gradients are needed."""
    if runtime != "auto":
        return Choice(runtime, f"runtime={runtime!r} was asked for")
    if gradient:
        return Choice("masked", "gradients reach the router through the branch not taken")
    if rows == 1:
        return Choice("conditional", "one row: a skipped layer's weights are never read")
    return Choice("grouped", f"{rows} rows: those that run are computed together")


def check_runtime(runtime: str) -> str:
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is {runtime!r}; expected one of {', '.join(RUNTIMES)}")
    return runtime
