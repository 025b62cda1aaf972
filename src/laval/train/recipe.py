"""What a training run is: a base, a method, data, and stages. Read strictly from YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from laval.models.configuration import AdaptiveConfig
from laval.skip import FlexiDepth
from laval.skip.fixed import check_seed


@dataclass(frozen=True)
class Source:
    """One text file (`text`), chat JSONL (`chat`), or a folder of either; `weight` is its share of the mixture.

    hold_out: leave out this share of a chat file's records, by hash: they are for evaluation.
    """

    path: Path
    weight: float = 1.0
    kind: Literal["auto", "text", "chat"] = "auto"
    hold_out: float = 0.0

    def __post_init__(self):
        if not 0 < self.weight < inf:
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
    the frozen model are computed once for all layers. `anneal`: end to end, hard routes; loss is `distill` (from the
    dense model's logits), `lm`, or both. focus: share of `align` before adapters care most for likely skippers.
    depth: wanted mean layers, or a range to draw from at each step; the controller holds it.
    alpha: instead of `depth`, the published penalty on the square of each token's summed gates.
    train_routers: routers go on learning, straight through the hard decision. data: instead of the recipe's own.
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
    data: Data | None = None

    def __post_init__(self):
        for name in ("tokens", "batch", "accumulate", "lr"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number")
        for name in ("warmup", "focus"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a share of the stage, from 0 to 1")
        for name in ("distill", "lm", "alpha"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a weight of 0 or more")
        if self.depth is not None and len(self.depth) not in (1, 2):
            raise ValueError(f"depth is {list(self.depth)}; expected one mean depth or a range of two")
        if self.objective == "anneal":
            self.check_anneal()

    def check_anneal(self) -> None:
        if self.depth is None and not self.alpha:
            raise ValueError(
                "depth and alpha are both missing; expected depth: [27] (layers) or alpha: 1e-3 (published)"
            )
        if not self.distill and not self.lm:
            raise ValueError("distill and lm are both 0; expected a weight for at least one, or nothing is learned")
        if self.alpha and (self.depth is not None or not self.train_routers):
            raise ValueError(
                f"alpha is {self.alpha}, which presses on routers; expected train_routers: true and no depth beside it"
            )

    def steps(self, sequences: int, ranks: int = 1) -> int:
        """Updates that so many sequences make, shared out among so many processes."""
        return max(1, sequences // (self.batch * self.accumulate * ranks))

    def tokens_seen(self, length: int, ranks: int = 1) -> int:
        """What the stage really sees in sequences of `length`: whole updates."""
        sequences = max(1, self.tokens // length)
        return min(sequences, self.steps(sequences, ranks) * self.batch * self.accumulate * ranks) * length


@dataclass(frozen=True)
class Recipe:
    """A whole run. output: the folder for checkpoints, metrics and the trained plug-in.

    calibrate, calibrate_tokens: sources of the text the budget curve is measured on, and how much of it to read;
    depths: the points of the curve; ship_depth: the one the saved plug-in starts at. card: more lines for its card.
    checkpointing: layers are computed again in the backward pass, to save memory.
    """

    model: str
    method: dict[str, Any]
    data: Data
    stages: tuple[Stage, ...]
    output: Path
    calibrate: tuple[Source, ...] = ()
    calibrate_tokens: int = 16384
    depths: tuple[float, ...] = ()
    ship_depth: float | None = None
    seed: int = 0
    threads: int | None = None
    save_steps: int = 50
    log_steps: int = 10
    report_to: tuple[str, ...] = ()
    checkpointing: bool = False
    price: float = 0.05
    card: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if not self.stages:
            raise ValueError(
                "stages is empty; expected at least one, for example {objective: anneal, tokens: 100000, depth: [27]}"
            )
        for name in ("save_steps", "log_steps", "price", "calibrate_tokens"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}; expected at least 1, or nothing to leave it to torch")
        check_seed(self.seed)
        self.check_curve()
        self.build_method()

    def check_curve(self) -> None:
        if bool(self.calibrate) != bool(self.depths):
            raise ValueError(
                "calibrate and depths belong together; expected both (text to measure on, such as the sources of "
                "data, and mean depths), or neither"
            )
        if self.ship_depth is None:
            return
        if not self.depths or not min(self.depths) <= self.ship_depth <= max(self.depths):
            raise ValueError(
                f"ship_depth is {self.ship_depth}; expected a depth within depths {list(self.depths)}, for it needs "
                "the budget curve it is a point of"
            )

    def build_method(self) -> FlexiDepth:
        """The method as its dataclass. ValueError for an unknown name or field, or a method without routers."""
        try:
            method = AdaptiveConfig(method=self.method).build_method()
        except ValueError as error:
            raise ValueError(f"method: {error}") from error
        if not isinstance(method, FlexiDepth):
            raise ValueError(
                f"method.name is {self.method['name']!r}, which has nothing to train; expected flexidepth"
            )
        return method
