"""What a training run is: a base, a method, data, and stages. Read strictly from YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Source:
    """One text file (`text`), chat JSONL (`chat`), or a folder of either; `weight` is its share of the mixture.

    skip: leave out this share of a chat file's records, by hash: held out for evaluation.
    """

    path: Path
    weight: float = 1.0
    kind: Literal["auto", "text", "chat"] = "auto"
    hold_out: float = 0.0

    def __post_init__(self):
        if self.weight <= 0:
            raise ValueError(f"weight is {self.weight}; expected a positive share of the mixture")
        if not 0 <= self.hold_out < 1:
            raise ValueError(f"hold_out is {self.hold_out}; expected a share from 0 to below 1")


@dataclass(frozen=True)
class Data:
    """Sources cut into sequences of `length` tokens and drawn by weight."""

    sources: tuple[Source, ...]
    length: int = 256

    def __post_init__(self):
        if not self.sources:
            raise ValueError("sources is empty; expected at least one text or chat file")
        if self.length < 8:
            raise ValueError(f"length is {self.length}; expected at least 8 tokens")


@dataclass(frozen=True)
class Stage:
    """One pass of training. tokens: how many to see. batch: sequences a step; accumulate: batches an update.

    objective `align`: adapters imitate the layers they replace, routers learn what skipping costs; hidden states of
    the frozen model are computed once for all layers. `anneal`: end to end, hard routes; loss is `distill` (from the dense model's
    logits), `lm`, or both. depth: wanted mean layers, or a range to draw from at each step; the controller holds it.
    alpha: instead of `depth`, the published penalty on the square of each token's summed gates.
    train_routers: routers go on learning, straight through the hard decision.
    """

    objective: Literal["align", "anneal"]
    tokens: int
    batch: int = 8
    accumulate: int = 1
    lr: float = 1e-3
    warmup: float = 0.05
    distill: float = 1.0
    lm: float = 0.0
    depth: tuple[float, ...] | None = None
    alpha: float = 0.0
    train_routers: bool = True
    focus: float = 0.3

    def __post_init__(self):
        for name in ("tokens", "batch", "accumulate", "lr"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number")
        if self.objective == "anneal" and self.depth is None and not self.alpha:
            raise ValueError(
                "depth and alpha are both missing; expected depth: [27] (layers) or alpha: 1e-3 (published)"
            )
        if self.depth is not None and len(self.depth) not in (1, 2):
            raise ValueError(f"depth is {list(self.depth)}; expected one mean depth or a range of two")


@dataclass(frozen=True)
class Recipe:
    """A whole run. output: the folder for checkpoints, metrics and the trained plug-in.

    calibrate: sources of the text the budget curve is measured on, and the depths on it; `ship_depth` is the default.
    """

    model: str
    method: dict[str, Any]
    data: Data
    stages: tuple[Stage, ...]
    output: Path
    calibrate: tuple[Source, ...] = ()
    depths: tuple[float, ...] = ()
    ship_depth: float | None = None
    seed: int = 0
    threads: int | None = None
    save_steps: int = 50
    log_steps: int = 10
    report_to: tuple[str, ...] = ()
    price: float = 0.05
    card: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if not self.stages:
            raise ValueError(
                "stages is empty; expected at least one, for example {objective: anneal, tokens: 100000, depth: [27]}"
            )
        if self.ship_depth is not None and not self.depths:
            raise ValueError("ship_depth needs depths: the budget curve it is a point of")
