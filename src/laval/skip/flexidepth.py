"""FlexiDepth: a router and an adapter per layer, decided per token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from laval.blocks import Context
from laval.blocks.hidden import check_hiding
from laval.skip.adapter import Adapter, NoAdapter
from laval.skip.policy import Decision, Single, SkipPolicy, check_layers, is_number, is_whole
from laval.skip.route import GATE_MODES, Route
from laval.skip.router import ROUTERS, wide_of
from laval.skip.several import Decisions, Several


@dataclass(frozen=True)
class FlexiDepth:
    """Token-wise layer skipping with learned routers and adapters (arXiv 2503.23798).

    layers: which may be skipped; None: the last half. router: order of norm and tanh, or the linear ablation.
    router_width, adapter_width: bottlenecks; None: 1/16 of the model's and the feed-forward network's width.
    gate: `hard_mask` (branches unscaled, a token that runs is exactly dense) or `released` (scaled by g and 1 - g).
    keep_kv: skipped tokens stay readable. tau: a token runs if g > tau. start: router bias, new routers run all.
    """

    layers: tuple[int, ...] | None = None
    router: Literal["norm_tanh", "tanh_norm", "linear"] = "norm_tanh"
    router_width: int | None = None
    adapter: bool = True
    adapter_width: int | None = None
    gate: Literal["hard_mask", "released"] = "hard_mask"
    keep_kv: bool = True
    tau: float = 0.5
    start: float = 2.0

    def __post_init__(self):
        if not (is_number(self.tau) and 0 < self.tau < 1):
            raise ValueError(f"tau is {self.tau!r}; expected a number between 0 and 1, both excluded: published 0.5")
        if not (is_number(self.start) and math.isfinite(self.start)):
            raise ValueError(f"start is {self.start!r}; expected a finite score, above 0 to start at run: 2.0")
        for field, known in (("router", ROUTERS), ("gate", GATE_MODES)):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} is {getattr(self, field)!r}; expected one of {', '.join(known)}")
        for field in ("router_width", "adapter_width"):
            width = getattr(self, field)
            if width is not None and not (is_whole(width) and width >= 1):
                raise ValueError(f"{field} is {width!r}; expected a whole number above 0, or nothing for 1/16")

    def resolve(self, config) -> FlexiDepth:
        """The same with every default written out for a base model's text config. ValueError if that cannot be."""
        if not self.keep_kv:
            check_hiding(config)
        depth = config.num_hidden_layers
        layers = range(depth // 2, depth) if self.layers is None else self.layers
        return replace(
            self,
            layers=check_layers(layers, depth),
            router_width=self.router_width or max(1, config.hidden_size // 16),
            adapter_width=self.adapter_width or max(1, config.intermediate_size // 16),
        )

    def build(self, config) -> FlexiDepthPolicy:
        """New routers and adapters for a base model's text config."""
        return FlexiDepthPolicy(self.resolve(config), config.hidden_size)


class FlexiDepthPolicy(SkipPolicy):
    """Routers, adapters and a threshold for each routed layer.

    `thresholds` [layers] are scores, not probabilities: a token runs if its score exceeds logit(tau).
    """

    def __init__(self, method: FlexiDepth, width: int):
        super().__init__(method.layers)
        self.method = method
        self.keeps_kv = method.keep_kv
        router = ROUTERS[method.router]
        self.routers = nn.ModuleDict(
            {str(layer): router(width, method.router_width, start=method.start) for layer in method.layers}
        )
        self.adapters = nn.ModuleDict(
            {
                str(layer): Adapter(width, method.adapter_width) if method.adapter else NoAdapter()
                for layer in method.layers
            }
        )
        self.set_thresholds([method.tau] * len(method.layers))

    def set_thresholds(self, taus) -> None:
        """One tau per routed layer, each between 0 and 1."""
        self.thresholds = {layer: math.log(tau / (1 - tau)) for layer, tau in zip(self.layers, taus, strict=True)}

    def score(self, index: int, z: torch.Tensor) -> torch.Tensor:
        """Router score of z [..., D] at layer `index`, [...]."""
        return self.routers[str(index)](z)

    def route(self, index: int, z: torch.Tensor, context: Context) -> Route:
        score = self.score(index, z)  # [B, T]
        return self.gated(score, score > self.thresholds[index])

    def replay(self, index: int, z: torch.Tensor, run: torch.Tensor) -> Route:
        return self.gated(self.score(index, z), run)

    def gated(self, score: torch.Tensor, run: torch.Tensor) -> Route:
        return GATE_MODES[self.method.gate](run, score)

    def adapt(self, index: int, u: torch.Tensor) -> torch.Tensor:
        return self.adapters[str(index)](u)

    def single(self, index: int) -> Single:
        return FlexiSingle(self, index)

    def several(self, index: int) -> Several:
        return FlexiSeveral(self, index)


class FlexiSingle(Single):
    """Router and adapter of one layer in the fewest operations, where both are the plain ones."""

    def __init__(self, policy: FlexiDepthPolicy, index: int):
        super().__init__(policy, index)
        self.first, self.finish = policy.routers[str(index)].single()
        self.adapt = policy.adapters[str(index)].single()
        self.scales = policy.method.gate == "released"

    def decide(self, z: torch.Tensor, e: torch.Tensor, context) -> Decision:
        score = self.finish(e.tolist())
        ran = score > self.policy.thresholds[self.index]
        if not self.scales:
            return Decision(ran, score)
        gate = 1 / (1 + math.exp(-score)) if score > -700 else 0.0  # beyond, the power overflows
        return Decision(ran, score, scale=gate if ran else 1 - gate)

    def route(self, decision: Decision) -> Route:
        dtype = wide_of(self.policy.routers[str(self.index)].head.weight)
        return self.policy.gated(torch.full((1, 1), decision.score, dtype=dtype), torch.tensor([[decision.ran]]))


class FlexiSeveral(Several):
    """Router and adapter of one layer for a few rows in few operations, where both are the plain ones."""

    def __init__(self, policy: FlexiDepthPolicy, index: int):
        super().__init__(policy, index)
        self.first, self.finish = policy.routers[str(index)].several()
        self.adapt = policy.adapters[str(index)].several()
        self.scales = policy.method.gate == "released"

    def decide(self, z: torch.Tensor, e: torch.Tensor, context) -> Decisions:
        score, threshold = self.finish(e), self.policy.thresholds[self.index]  # [B]
        ran = [one > threshold for one in score.tolist()]

        def record(run: torch.Tensor):
            return self.policy.gated(score[:, None].clone(), run)  # a plain tensor, though decided in inference mode

        if not self.scales:
            return Decisions(ran, record)
        gate = score.sigmoid().to(z.dtype)[:, None]
        return Decisions(ran, record, gate, 1 - gate)
