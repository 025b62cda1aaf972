"""Timing that survives a noisy machine: the functions take turns, and ratios are taken within a turn."""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the first function: the median over rounds, and a 95 % bootstrap interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTimes:
    """Seconds of every function in every round; the first function is what the others are compared with."""

    seconds: dict[str, tuple[float, ...]]
    seed: int = 0

    @property
    def first(self) -> str:
        return next(iter(self.seconds))

    @property
    def rounds(self) -> int:
        return len(self.seconds[self.first])

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def best(self, name: str) -> float:
        return min(self.seconds[name])

    def ratio(self, name: str) -> Ratio:
        """First's seconds over this function's, round by round: above 1 is faster than the first."""
        pairs = zip(self.seconds[self.first], self.seconds[name], strict=True)
        ratios = [first / own for first, own in pairs]
        draw = random.Random(self.seed)
        medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
        tail = RESAMPLES // 40
        return Ratio(statistics.median(ratios), medians[tail], medians[-tail - 1])

    def to_dict(self) -> dict[str, Any]:
        """first, rounds, seed, and for each function its median, min, ratio, interval and raw seconds."""
        records = {name: self._record(name) for name in self.seconds}
        return {"first": self.first, "rounds": self.rounds, "seed": self.seed, "functions": records}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def _record(self, name: str) -> dict[str, Any]:
        ratio = self.ratio(name)
        return {
            "median": self.median(name),
            "min": self.best(name),
            "ratio": ratio.median,
            "interval": [ratio.low, ratio.high],
            "seconds": list(self.seconds[name]),
        }


def paired(
    functions: dict[str, Callable[[], Any]],
    rounds: int = 10,
    warmup: int = 1,
    seconds_limit: float | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> PairedTimes:
    """Time functions in turns: every round calls each once, forwards and backwards by turns.

    warmup: untimed rounds before. seconds_limit: no new round starts after this long (one always runs).
    Garbage is collected before each round, never within; CUDA is waited for if it is in use.
    Errors: ValueError without functions, or for fewer than one round.
    """
    if not functions or rounds < 1 or warmup < 0:
        raise ValueError(f"{len(functions)} functions, rounds={rounds}, warmup={warmup}: expected 1, 1 and 0 or more")
    start, names = clock(), list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(warmup):
        for name in names:
            functions[name]()
    for round_ in range(rounds):
        if round_ and seconds_limit is not None and clock() - start > seconds_limit:
            break
        # whoever always goes second would always find the caches the first left behind
        order = names if round_ % 2 == 0 else names[::-1]
        with _no_collection():
            for name in order:
                seconds[name].append(_time(functions[name], clock))
    return PairedTimes({name: tuple(times) for name, times in seconds.items()}, seed)


def _time(function: Callable[[], Any], clock: Callable[[], float]) -> float:
    _synchronise()
    start = clock()
    function()
    _synchronise()
    return clock() - start


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect first, then not until the end, and leave the collector as it was found."""
    was_on = gc.isenabled()
    gc.collect(1)  # the young: what a round leaves behind. A full collection can take longer than the round
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
