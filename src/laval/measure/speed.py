"""Dense and skipping side by side on the same tokens, in one paired run, with the ideal beside it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from laval.compat import cache_argument
from laval.measure.machine import machine_peaks
from laval.measure.model import model_cost, skip_shape
from laval.measure.timing import PairedTimes, Ratio, paired
from laval.models.switches import recording, skipping, using


@dataclass(frozen=True)
class Cell:
    """One measurement, for `units` tokens of every sequence (decode) or calls (prefill) each.

    times: of "dense" (every layer, by the same engine), "skipping", and "stock" (the untouched transformers model).
    ratio: dense seconds over skipping's, above 1 is faster. ideal: the ratio that the cost model holds possible at the
    depth of these very tokens on this machine.
    """

    name: str
    batch: int
    prompt: int
    new: int
    mean_depth: float
    times: PairedTimes
    units: int
    ideal: float

    @property
    def ratio(self) -> Ratio:
        return self.times.ratio("skipping")

    @property
    def over_stock(self) -> float:
        """How many times faster than the stock model the skipping one is: median over rounds."""
        pairs = zip(self.times.seconds["stock"], self.times.seconds["skipping"], strict=True)
        return statistics.median(stock / own for stock, own in pairs)

    @property
    def engine(self) -> float:
        """The same for the dense engine."""
        return 1 / self.times.ratio("stock").median

    def seconds(self, name: str) -> float:
        """Median seconds per token of each sequence (decode) or per call (prefill)."""
        return self.times.median(name) / self.units

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "cell": self.name,
            "batch": self.batch,
            "prompt": self.prompt,
            "new": self.new,
            "per": "token" if self.name == "decode" else "call",
            "seconds": {name: self.seconds(name) for name in self.times.seconds},
            "ratio": self.ratio.median,
            "interval": [self.ratio.low, self.ratio.high],
            "ideal": self.ideal,
            "share_of_ideal": self.ratio.median / self.ideal,
            "dense_over_stock": self.engine,
            "skipping_over_stock": self.over_stock,
            "mean_depth": self.mean_depth,
            "rounds": self.times.rounds,
        }


class Walk:
    """One way of decoding known tokens ids [B, N]: a prompt at once, then `steps` tokens one by one at every call."""

    def __init__(self, model, runtime: str, ids: torch.Tensor, prompt: int, steps: int):
        self.model, self.runtime, self.ids, self.place, self.steps = model, runtime, ids, prompt, steps
        self.cache = prefill(model, runtime, ids[:, :prompt])

    def __call__(self) -> None:
        with using(self.model, self.runtime):
            for _ in range(self.steps):
                tokens = self.ids[:, self.place : self.place + 1]
                self.model(tokens, logits_to_keep=1, **cache_argument(self.cache))
                self.place += 1


def prefill(model, runtime: str, ids: torch.Tensor) -> DynamicCache:
    """One call over ids [B, T] as `generate` makes it, logits of the last token only: the cache that it leaves."""
    cache = DynamicCache(config=model.config.text_config)
    with using(model, runtime):
        model(ids, logits_to_keep=1, **cache_argument(cache))
    return cache


@torch.no_grad()
def decode_cell(model, ids, prompt: int = 64, steps: int = 8, rounds: int = 8, seconds_limit=None, batch: int = 1):
    """Single-token steps over text ids [N], `steps` at a time by turns; all ways read the same tokens.

    batch: so many sequences side by side, each a part of the text of its own. A text that is too short is read again
    from its start.
    """
    new = steps * (rounds + 1)  # one round warms up
    ids = side_by_side(ids, batch, prompt + new).to(model.device)
    ways = {name: Walk(model, runtime, ids, prompt, steps) for name, runtime in runtimes(model).items()}
    times = paired(ways, rounds, warmup=1, seconds_limit=seconds_limit)
    return cell("decode", model, ids, prompt, new, times, steps)


@torch.no_grad()
def prefill_cell(model, ids, length: int = 512, rounds: int = 8, seconds_limit=None, batch: int = 1) -> Cell:
    """One forward over `length` tokens of text, keys and values kept, logits of the last token only."""
    ids = side_by_side(ids, batch, length).to(model.device)
    ways = {name: partial(prefill, model, runtime, ids) for name, runtime in runtimes(model).items()}
    times = paired(ways, rounds, warmup=1, seconds_limit=seconds_limit)
    return cell("prefill", model, ids, length, 0, times, 1)


def cell(name: str, model, ids: torch.Tensor, prompt: int, new: int, times: PairedTimes, units: int) -> Cell:
    """The measurement with the depth of its tokens and the ideal that belongs to it."""
    with using(model, "full" if turned_off(model, name, ids) else model.runtime):
        run = routes_of(model, ids)[:, :, prompt if new else 0 :]  # [L, B, tokens]
        rates = run.double().mean((1, 2))
        skip = skip_shape(model)
        ideal = model_cost(
            model,
            batch=len(ids),
            prompt=prompt,
            new=new,
            run_share=[float(rates[layer]) for layer in skip.layers] if skip else 1.0,
            peaks=machine_peaks(model.device, model.base.dtype),
        ).phase_speedup(name)
    return Cell(name, len(ids), prompt, new, float(rates.sum()), times, units, ideal)


def turned_off(model, name: str, ids: torch.Tensor) -> bool:
    """Whether the break-even rule had every layer run in a cell over ids [B, N]."""
    step = name == "decode"
    return model.way(len(ids) if step else ids.numel(), step, ids.device.type).step == "full"


def routes_of(model, ids: torch.Tensor) -> torch.Tensor:
    """Which layers run for ids [B, N], bool [L, B, N], whatever the break-even rule says; untimed."""
    with skipping(model), recording(model) as record:
        model(ids, use_cache=False, logits_to_keep=1)
    return record.run


def runtimes(model) -> dict[str, str]:
    return {"dense": "full", "skipping": model.runtime, "stock": "dense"}


def side_by_side(ids, batch: int, length: int) -> torch.Tensor:
    """The first batch * length tokens of ids [N], over and over if need be, [batch, length]."""
    ids = torch.as_tensor(ids, dtype=torch.int64)
    return ids.repeat(-(-batch * length // len(ids)))[: batch * length].view(batch, length)
