"""Which way to carry out a call: from its sizes, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from laval.ops.rows import MOST
from laval.runtime.break_even import BreakEven

RUNTIMES = ("auto", "masked", "grouped", "conditional", "agreed", "full", "dense")
"""By agreed, a step of several sequences skips a layer only if all ask to: it changes routes, the others do not."""


@dataclass(frozen=True)
class Choice:
    """The way chosen for one call, and why. kernels: stock, bit for bit; few or many: made for so many rows."""

    step: str
    reason: str
    kernels: str = "stock"

    @property
    def quick(self) -> bool:
        """With kernels made for a few rows, equal up to rounding."""
        return self.kernels == "few"


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
    way, reason = pick(runtime, rows, gradient, step) if loss is None else ("full", loss)
    stock = way == "masked" or device != "cpu" or gradient
    return Choice(way, reason, "stock" if stock else "few" if rows <= MOST else "many")


def pick(runtime: str, rows: int, gradient: bool, step: bool) -> tuple[str, str]:
    if runtime == "agreed" and not step:  # its rows are computed together in any case, so nothing is won by agreeing
        return "grouped", "runtime='agreed' was asked for, which is for single steps with a cache"
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
