"""laval.json, the record of a plug-in: what it holds, read strictly, and whether it fits a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import laval
from laval.config import load_config
from laval.models.configuration import AdaptiveConfig
from laval.models.weights import AGAIN, NUMBERS, read_json
from laval.skip.policy import is_number

RECORD = "laval.json"
FORMAT = 1  # of the folder: raise it when an older laval could not read a new one
DTYPES = tuple(str(dtype).removeprefix("torch.") for dtype in NUMBERS)
POINT = ("depth", "taus", "nats")
MEND = "calibrate again on other text (laval calibrate), or take the point out of model.config.curve"


@dataclass(frozen=True)
class Shape:
    """What must agree between a plug-in and its base: see AdaptiveConfig.base_shape."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    vocab_size: int


@dataclass(frozen=True)
class Record:
    """method: name and fields. taus: one per routed layer. curve: the calibrated budget curve. dtype: on disk."""

    format: int
    method: dict[str, Any]
    base_shape: Shape
    base_name: str | None = None
    taus: list[float] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    dtype: str | None = None
    laval: str | None = None

    def __post_init__(self):
        if not 1 <= self.format <= FORMAT:
            raise ValueError(f"format is {self.format}; expected {FORMAT}: {AGAIN}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; expected {', '.join(DTYPES)}, or null for several")


def read_record(path: Path) -> tuple[Record, Any]:
    """The record and its method. ValueError for another format, a key given twice, an unknown key, method or field."""
    content = read_json(path)
    version = content.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise ValueError(
            f"{path}: format is {version}, written by laval {content.get('laval', 'of a later release')}; this laval "
            f"({laval.__version__}) reads up to {FORMAT}: upgrade it with pip install --upgrade laval"
        )
    try:
        record = load_config(Record, content)
        return record, AdaptiveConfig(method=record.method).build_method()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_budgets(record: Record, policy, config, path: Path) -> None:
    """ValueError for thresholds or a budget curve that do not fit the routed layers of a model with text `config`."""
    if record.taus:
        check_taus(record.taus, policy, path, AGAIN)
    check_curve(record.curve, policy, config, path, AGAIN)


def check_saved(config: AdaptiveConfig, policy) -> None:
    """ValueError for a budget curve that could not be read again, before anything is written."""
    check_curve(config.curve, policy, config.text_config, "model.config, not saved", MEND)


def check_curve(curve: list[dict], policy, config, source: Path | str, fix: str) -> None:
    """ValueError that names the first point of a budget curve that says nothing, and the way out."""
    for number, point in enumerate(curve):
        check_point(point, policy, config.num_hidden_layers, f"{source}: curve[{number}]", fix)


def check_point(point: dict, policy, layers: int, place: str, fix: str) -> None:
    for key in point:
        if key not in POINT:
            near = get_close_matches(key, POINT, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{place}: {key}: unknown key; {hint}Known here: {', '.join(POINT)}")
    depth, nats = point.get("depth"), point.get("nats")
    if not (is_number(depth) and 0 <= depth <= layers):
        raise ValueError(f"{place}: depth is {depth!r}; expected a mean number of layers from 0 to {layers}; {fix}")
    check_taus(point.get("taus"), policy, place, fix)
    if nats is not None and not (is_number(nats) and math.isfinite(nats)):
        raise ValueError(f"{place} (depth {depth:.2f}): nats is {nats!r}; expected a finite number per token; {fix}")


def check_taus(taus, policy, place: Path | str, fix: str) -> None:
    expected = len(policy.layers) if hasattr(policy, "thresholds") else 0
    listed = isinstance(taus, (list, tuple))
    if not listed or len(taus) != expected or not all(is_number(tau) and 0 < tau < 1 for tau in taus):
        raise ValueError(f"{place}: taus are {taus}; expected {expected} numbers between 0 and 1; {fix}")
