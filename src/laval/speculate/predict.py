"""What lossless decoding can gain at best: from sizes, acceptance and the rates of a machine, before it is built."""

from __future__ import annotations

from dataclasses import dataclass

from laval.measure import LayerShape, SkipShape, dense_work, run_work, skip_work
from laval.measure.cost import Rates
from laval.speculate.control import expected_tokens

LONGEST = 15


def llama(hidden: int, intermediate: int, heads: int, layers: int, head_dim: int, tied: bool) -> LayerShape:
    return LayerShape(hidden, intermediate, heads, 8, head_dim, 128_256, layers, tied, (None,) * layers)


SHAPES = {
    "Llama 3.2 1B": llama(2048, 8192, 32, 16, 64, tied=True),
    "Llama 3.1 8B": llama(4096, 14_336, 32, 32, 128, tied=False),
    "Llama 3.1 70B": llama(8192, 28_672, 64, 80, 128, tied=False),
}
"""Published sizes, from the config.json of each model."""


@dataclass(frozen=True)
class Machine:
    """flops per second and bytes read per second."""

    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Prediction:
    """gain: tokens per second over plain decoding, with the best number of drafted `tokens` (0: no draft pays)."""

    gain: float
    tokens: int


@dataclass(frozen=True)
class Load:
    """What one forward asks of a machine."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.flops + other.flops, self.bytes + other.bytes)

    def seconds(self, peaks: Rates) -> float:
        return max(self.flops / peaks.flops, self.bytes / peaks.bandwidth)


def predicted_gain(
    shape: LayerShape,
    acceptance: float,
    peaks: Rates,
    *,
    depth: float | None = None,
    exit_layers: int | None = None,
    context: int = 512,
    dtype_bytes: float = 2,
) -> Prediction:
    """The gain of verifying drafts that are right with probability `acceptance`, each if those before it are.

    depth: of a skipping draft, in mean layers per token; exit_layers: of an early exit; neither: a draft for free.
    context: tokens in the cache. Roofline seconds: weights are read once per forward, arithmetic grows with rows.
    ValueError for an acceptance outside [0, 1], both kinds of draft at once, or a draft deeper than the model.
    """
    check(shape, acceptance, depth, exit_layers)
    one = dense_load(shape, 1, context, dtype_bytes).seconds(peaks)
    draft = draft_load(shape, depth, exit_layers, context, dtype_bytes).seconds(peaks)
    best = Prediction(1.0, 0)
    for count in range(1, LONGEST + 1):
        verify = dense_load(shape, count + 1, context, dtype_bytes).seconds(peaks)
        gain = expected_tokens([acceptance] * count) * one / (count * draft + verify)
        best = max(best, Prediction(gain, count), key=lambda prediction: prediction.gain)
    return best


def dense_load(shape: LayerShape, rows: int, context: int, size: float) -> Load:
    """A dense forward of `rows` tokens over `context` cached ones, logits for all of them."""
    return stack(shape, shape.layers, rows, context, size) + head(shape, rows, size)


def draft_load(shape: LayerShape, depth, exit_layers, context: int, size: float) -> Load:
    """One drafted token."""
    if depth is None and exit_layers is None:
        return Load()
    if exit_layers is not None:
        return stack(shape, exit_layers, 1, context, size) + head(shape, 1, size)
    skip = plugin(shape)
    routed = len(skip.layers)
    share = (depth - shape.layers + routed) / routed
    ran, skipped = run_work(shape, skip, context), skip_work(shape, skip)
    mixed = Load(
        routed * (share * ran.flops + (1 - share) * skipped.flops),
        routed * size * (share * (ran.weights + ran.kv) + (1 - share) * (skipped.weights + skipped.kv)),
    )
    return stack(shape, shape.layers - routed, 1, context, size) + mixed + head(shape, 1, size)


def stack(shape: LayerShape, layers: int, rows: int, context: int, size: float) -> Load:
    work = dense_work(shape, context)
    return Load(layers * rows * work.flops, layers * size * (work.weights + work.kv))


def head(shape: LayerShape, rows: int, size: float) -> Load:
    return Load(2 * rows * shape.head_weights, size * shape.head_weights)


def plugin(shape: LayerShape) -> SkipShape:
    """The published arrangement: the last half routed, router and adapter a sixteenth as wide."""
    return SkipShape(tuple(range(shape.layers // 2, shape.layers)), shape.hidden // 16, shape.intermediate // 16)


def check(shape: LayerShape, acceptance: float, depth, exit_layers) -> None:
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance is {acceptance}; expected a probability from 0 to 1")
    if depth is not None and exit_layers is not None:
        raise ValueError(f"depth is {depth} and exit_layers is {exit_layers}; expected one kind of draft, or none")
    if exit_layers is not None and not 1 <= exit_layers < shape.layers:
        raise ValueError(f"exit_layers is {exit_layers}; expected 1 to {shape.layers - 1}")
    if depth is not None and not shape.layers - len(plugin(shape).layers) <= depth <= shape.layers:
        raise ValueError(f"depth is {depth}; expected {shape.layers - shape.layers // 2} to {shape.layers} layers")
