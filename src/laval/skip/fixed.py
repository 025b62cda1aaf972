"""Policies without a router: the same layers for every token (ShortGPT), or tokens at random (a control)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from laval.blocks import Context
from laval.skip.policy import SkipPolicy, check_layers, is_whole
from laval.skip.route import Route

PRIMES = (73856093, 19349663, 83492791)
SEEDS = 2**32  # numpy takes no more, and times a prime they stay within int64


@dataclass(frozen=True)
class DropLayers:
    """Every token skips the same layers, as ShortGPT and other static methods do once they have chosen."""

    layers: tuple[int, ...] = ()

    def resolve(self, config) -> DropLayers:
        return DropLayers(check_layers(self.layers, config.num_hidden_layers))

    def build(self, config) -> SkipPolicy:
        return DropPolicy(self.resolve(config).layers)


class DropPolicy(SkipPolicy):
    def route(self, index: int, z: torch.Tensor, context: Context) -> Route:
        return Route(torch.zeros(z.shape[:2], dtype=torch.bool, device=z.device))


@dataclass(frozen=True)
class RandomRoutes:
    """Each token runs each of `layers` with probability `rate`, by a hash of seed, layer and position: the control.

    The same token at the same position decides alike whether cached, padded or batched.
    """

    layers: tuple[int, ...] = ()
    rate: float = 0.5
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; expected a probability from 0 to 1")
        check_seed(self.seed)

    def resolve(self, config) -> RandomRoutes:
        return RandomRoutes(check_layers(self.layers, config.num_hidden_layers), self.rate, self.seed)

    def build(self, config) -> SkipPolicy:
        return RandomPolicy(self.resolve(config))


class RandomPolicy(SkipPolicy):
    def __init__(self, method: RandomRoutes):
        super().__init__(method.layers)
        self.method = method

    def route(self, index: int, z: torch.Tensor, context: Context) -> Route:
        run = coin(context.position_ids, index, self.method.seed) < self.method.rate
        return Route(run.expand(z.shape[:2]))


def check_seed(seed) -> None:
    """ValueError unless `coin` can count with it, and torch and numpy can start from it."""
    if not (is_whole(seed) and 0 <= seed < SEEDS):
        raise ValueError(f"seed is {seed!r}; expected a whole number from 0 to {SEEDS - 1}")


def coin(positions: torch.Tensor, layer: int, seed: int) -> torch.Tensor:
    """Uniform numbers in [0, 1) from position, layer and seed alone; positions int64 [...] -> float64 [...]."""
    x = (positions + 1) * PRIMES[0] ^ (layer + 1) * PRIMES[1] ^ (seed + 1) * PRIMES[2]
    for _ in range(3):  # xorshift and multiply, on 31 bits
        x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
        x = ((x ^ (x >> 12)) * 0x297A2D39) & 0x7FFFFFFF
    return (x ^ (x >> 15)).double() / 2**31
