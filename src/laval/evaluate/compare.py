"""Quality against measured depth, learned and controls side by side, as records that survive an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from laval.evaluate.book import Book, stamp_of
from laval.evaluate.budget import kept_thresholds, match_depth
from laval.evaluate.controls import greedy_layers, random_control, run_share, shortgpt_layers
from laval.evaluate.perplexity import ratio_interval, read_through, summary
from laval.evaluate.text import Text, as_batches, as_text, text_batches
from laval.models import AdaptiveForCausalLM, attach, dense
from laval.models.checks import check_adaptive
from laval.skip import DropLayers

STATIC = {"shortgpt": shortgpt_layers, "greedy": greedy_layers}
CONTROLS = (*STATIC, "random")
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Arm:
    """One point to measure: a method at a wanted depth."""

    method: str
    wanted: float
    seed: int | None = None


def depth_curve(
    model: AdaptiveForCausalLM,
    texts: Mapping[str, Text | torch.Tensor],
    depths,
    controls=CONTROLS,
    calibration=None,
    orders: Mapping[str, list[int]] | None = None,
    path: str | Path | None = None,
    seeds=SEEDS,
    length: int = 512,
    batch: int = 8,
    progress: bool = True,
) -> list[dict]:
    """Perplexity of dense model, plug-in and controls at matched depths on each text, as JSON-ready records.

    The plug-in's thresholds are matched on each text. Static controls are measured at whole depths only, with layers
    chosen on `calibration` (batches), or taken from `orders`: by control, the layers to remove, first to last.
    Random routes go through the plug-in's own adapters, once per seed.
    A record has text, method, wanted and measured depth, perplexity, ratio to dense with a 95 % interval (low, high),
    tokens, seed, layers dropped, and the stamps of what was measured. With `path` (JSONL) each is written at once;
    points already there for the same plug-in, text, length, and calibration or order are not measured again.
    Errors: ValueError for an unknown control, a depth out of reach, or static controls without either.
    """
    check_adaptive(model)
    drop = max_drop(model, depths)
    check(model, depths, controls, calibration, orders or {}, drop)
    study = Study(model, calibration and as_batches(calibration), orders or {}, drop, length, batch, progress)
    book = Book(path)
    plan = arms(model, depths, controls, seeds)
    return [
        book.get(
            text=name, text_stamp=stamp_of(text.ids), chosen=study.chosen(arm), stamp=study.stamp(arm), **vars(arm)
        )
        or book.add(study.record(name, text, arm, book))
        for name, text in ((name, as_text(text)) for name, text in texts.items())
        for arm in plan
    ]


def check(model, depths, controls, calibration, orders, drop: int) -> None:
    unknown = [control for control in controls if control not in CONTROLS]
    if unknown:
        raise ValueError(f"controls has {unknown[0]!r}; expected some of {', '.join(CONTROLS)}")
    for control in set(controls) & set(STATIC):
        if control not in orders and not calibration:
            raise ValueError(f"calibration is missing; expected batches of text on which {control} chooses layers")
        if control in orders and len(orders[control]) < drop:
            raise ValueError(f"orders.{control} has {len(orders[control])} layers; expected {drop} for these depths")
    for depth in depths:
        run_share(model, depth)


def max_drop(model, depths) -> int:
    return max((len(model.backbone.blocks) - int(depth) for depth in depths if depth == int(depth)), default=0)


def arms(model, depths, controls, seeds) -> list[Arm]:
    """What is measured on each text, dense first: the others are compared with it."""
    total = len(model.backbone.blocks)
    plan = [Arm("dense", total)]
    for depth in sorted((float(depth) for depth in depths), reverse=True):
        plan += [Arm(plugin_name(model), depth)] if hasattr(model.policy, "thresholds") else []
        plan += [Arm(control, depth) for control in controls if control in STATIC and depth.is_integer()]
        plan += [Arm("random", depth, seed) for seed in seeds if "random" in controls]
    return plan


def plugin_name(model) -> str:
    return model.config.method["name"]


class Study:
    """Sets the model up for each arm and measures it; what several arms share is worked out once."""

    def __init__(self, model, calibration, orders, drop: int, length: int, batch: int, progress: bool):
        self.model, self.calibration, self.drop = model, calibration, drop
        self.length, self.batch, self.progress = length, batch, progress
        self.given, self.orders = orders, {name: list(order) for name, order in orders.items()}
        self.dense_reads: dict[str, tuple] = {}

    def record(self, name: str, text: Text, arm: Arm, book: Book) -> dict:
        """Measure one arm on one text."""
        dense_nats = self.dense(text)[0]
        dropped = self.dropped(arm, book)
        nats, rates = self.measured(arm, text, dropped)
        score, ratio = summary(nats, rates, text.bytes), ratio_interval(nats, dense_nats, 0, self.length)
        return {
            "text": name,
            "method": arm.method,
            "wanted": arm.wanted,
            "depth": score.mean_depth,
            "perplexity": score.perplexity,
            "ratio": ratio.ratio,
            "low": ratio.low,
            "high": ratio.high,
            "bits_per_byte": score.bits_per_byte,
            "tokens": score.tokens,
            "seed": arm.seed,
            "layers": dropped,
            "chosen": self.chosen(arm),
            "text_stamp": stamp_of(text.ids),
            "stamp": self.stamp(arm),
        }

    def measured(self, arm: Arm, text: Text, dropped: list[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The model set up as the arm wants it, and read."""
        if arm.method == "dense":
            return self.dense(text)
        if arm.method == "random":
            return self.read(random_control(self.model, arm.wanted, arm.seed, self.length), text)
        if dropped is not None:
            return self.read(attach(self.model, DropLayers(tuple(dropped))), text)
        with kept_thresholds(self.model):
            match_depth(self.model, text_batches(text, self.length, batch=self.batch), arm.wanted)
            return self.read(self.model, text)

    def dropped(self, arm: Arm, book: Book) -> list[int] | None:
        """The layers a static control removes, in order of removal; found once, or read back from the book."""
        if arm.method not in STATIC:
            return None
        if arm.method not in self.orders:
            found = book.longest(method=arm.method, chosen=self.chosen(arm), stamp=self.stamp(arm))
            if len(found) < self.drop:
                found = list(STATIC[arm.method](self.model, self.calibration, self.drop, self.progress))
            self.orders[arm.method] = found
        return self.orders[arm.method][: len(self.model.backbone.blocks) - int(arm.wanted)]

    def chosen(self, arm: Arm) -> str | None:
        """Tells what a static control's layers were chosen by."""
        return stamp_of(self.calibration, self.given.get(arm.method)) if arm.method in STATIC else None

    def dense(self, text: Text) -> tuple[torch.Tensor, torch.Tensor]:
        """What the dense model makes of a text, read once."""
        key = stamp_of(text.ids)
        if key not in self.dense_reads:
            with dense(self.model) as model:
                self.dense_reads[key] = self.read(model, text)
        return self.dense_reads[key]

    def read(self, model, text: Text) -> tuple[torch.Tensor, torch.Tensor]:
        """Nats per token and run rates by layer."""
        return read_through(model, text, self.length, None, self.batch, self.progress)

    def stamp(self, arm: Arm) -> str:
        """Tells the base, the window length and, where it takes part, the plug-in from others."""
        config, norm = self.model.config, self.model.backbone.decoder.norm.weight
        plugin = None if arm.method in ("dense", *STATIC) else (config.method, self.model.policy.state_dict())
        return stamp_of(config.base_name, config.base_shape, norm, plugin, self.length)
