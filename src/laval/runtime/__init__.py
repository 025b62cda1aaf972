"""How a forward is carried out, and what it leaves behind for reports."""

from __future__ import annotations

from laval.runtime.break_even import BreakEven
from laval.runtime.buffers import GrowingLayer, give_room
from laval.runtime.choose import RUNTIMES, Choice, check_runtime, choose
from laval.runtime.record import Recording
from laval.runtime.steps import STEPS

__all__ = [
    "RUNTIMES",
    "STEPS",
    "BreakEven",
    "Choice",
    "GrowingLayer",
    "Recording",
    "check_runtime",
    "choose",
    "give_room",
]
