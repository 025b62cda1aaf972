"""What a forward costs on paper, what this machine can do, and what a call really takes."""

from laval.measure.cost import Cost, Phase, Work, cost, dense_work, run_work, skip_work
from laval.measure.machine import Peaks, machine_facts, machine_peaks
from laval.measure.shape import LayerShape, SkipShape
from laval.measure.timing import PairedTimes, Ratio, paired

__all__ = [
    "Cost",
    "LayerShape",
    "PairedTimes",
    "Peaks",
    "Phase",
    "Ratio",
    "SkipShape",
    "Work",
    "cost",
    "dense_work",
    "machine_facts",
    "machine_peaks",
    "paired",
    "run_work",
    "skip_work",
]
