"""What a call costs on paper: floating-point operations, bytes moved, and the time no machine can beat.

Counted: matrix products, attention over the keys a query may see, weights read, keys and values written and read.
Left out: norms, rotary, softmax and activations (a few per cent at most), and the launch of each operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from laval.measure.shape import LayerShape, SkipShape

PHASES = ("prefill", "decode")
NORMS = ("norm", "feed_norm")


class Rates(Protocol):
    """What a machine can do: flops per second and bytes read per second (`machine.Peaks` has both)."""

    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Work:
    """Cost of one token in one layer: FLOPs, weight values read if it is alone, cache values written and read."""

    flops: float
    weights: float
    kv: float


def dense_work(shape: LayerShape, seen: float = 0) -> Work:
    """One token in an untouched layer; `seen` keys are in reach, its own included."""
    return _work(shape, shape.dense_parts(), asks=True, writes=True, seen=seen)


def run_work(shape: LayerShape, skip: SkipShape, seen: float = 0) -> Work:
    """One token that runs a routed layer: the whole layer, and the router."""
    return _work(shape, skip.run_parts(shape), asks=True, writes=True, seen=seen)


def skip_work(shape: LayerShape, skip: SkipShape) -> Work:
    """One token that skips a routed layer: norm, keys and values, router, feed norm, adapter."""
    return _work(shape, skip.skip_parts(shape), asks=False, writes=skip.keeps_kv, seen=0)


def _work(shape: LayerShape, parts: dict[str, int], asks: bool, writes: bool, seen: float) -> Work:
    matrices = sum(size for name, size in parts.items() if name not in NORMS)
    attention = 4 * shape.heads * shape.head_dim * seen * asks  # scores, then the weighted sum
    kv = shape.kv_width * (writes + seen * asks)
    return Work(flops=2 * matrices + attention, weights=sum(parts.values()), kv=kv)


@dataclass(frozen=True)
class Phase:
    """Cost of one phase (prefill or decode) of one call, all rows together."""

    flops: float
    weight_bytes: float
    kv_bytes: float

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes

    def seconds(self, peaks: Rates) -> float:
        """Roofline: the slower of arithmetic and memory."""
        return max(self.flops / peaks.flops, self.bytes / peaks.bandwidth)


@dataclass(frozen=True)
class Cost:
    """Cost of one call, with the dense model's beside it (`dense` is None on the dense cost itself).

    cache_bytes: size of the key/value cache at the end. kv_bytes: traffic to and from it.
    """

    prefill: Phase
    decode: Phase
    cache_bytes: float
    peaks: Rates | None = None
    dense: Cost | None = None

    @property
    def flops(self) -> float:
        return self.prefill.flops + self.decode.flops

    @property
    def bytes(self) -> float:
        return self.prefill.bytes + self.decode.bytes

    @property
    def kv_bytes(self) -> float:
        return self.prefill.kv_bytes + self.decode.kv_bytes

    @property
    def saved_share(self) -> float:
        """Share of the dense model's FLOPs that is not spent."""
        return 1 - self.flops / self.dense.flops if self.dense and self.dense.flops else 0.0

    @property
    def ideal_seconds(self) -> float | None:
        """Seconds that no run on a machine with these peaks can beat; None without peaks."""
        return self.prefill.seconds(self.peaks) + self.decode.seconds(self.peaks) if self.peaks else None

    @property
    def ideal_speedup(self) -> float | None:
        """Dense ideal seconds over these; None without peaks."""
        return _ratio(self.dense.ideal_seconds, self.ideal_seconds) if self.dense and self.peaks else None

    def phase_speedup(self, phase: str) -> float | None:
        """The ideal speed-up of "prefill" or "decode" alone; None without peaks."""
        if phase not in PHASES:
            raise ValueError(f"phase={phase!r}: expected 'prefill' or 'decode'")
        if not (self.dense and self.peaks):
            return None
        return _ratio(getattr(self.dense, phase).seconds(self.peaks), getattr(self, phase).seconds(self.peaks))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; the dense cost is nested under "dense"."""
        record = {name: asdict(getattr(self, name)) | {"bytes": getattr(self, name).bytes} for name in PHASES}
        names = ("flops", "bytes", "kv_bytes", "cache_bytes", "saved_share", "ideal_seconds", "ideal_speedup")
        record |= {name: getattr(self, name) for name in names}
        return record | {"dense": self.dense.to_dict() if self.dense else None}


def cost(
    shape: LayerShape,
    skip: SkipShape | None = None,
    run_share: float | Sequence[float] = 1.0,
    *,
    batch: int = 1,
    prompt: int,
    new: int,
    dtype_bytes: float = 4,
    kv_dtype_bytes: float | None = None,
    peaks: Rates | None = None,
) -> Cost:
    """Cost of a prompt of `prompt` tokens and then `new` cached steps of one token, for `batch` rows.

    run_share: share of tokens that run a routed layer, one for all or one per entry of `skip.layers`.
    dtype_bytes: per weight; kv_dtype_bytes: per cache value (the same unless given).
    Prefill computes logits for the last position only, so `generate(max_new_tokens=n)` makes n - 1 steps.
    Rows are taken as independent: with share p a layer's weights are read by one of n rows with probability
    1 - (1 - p)^n, n being batch when decoding and batch * prompt in prefill. Routes that agree do better.
    Errors: ValueError for a share outside [0, 1], a layer out of range, sizes below 0 or a batch below 1.
    """
    _check(shape, skip, batch, prompt, new)
    shares = _shares(shape, skip, run_share)
    kv_size = dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
    passes = (
        _Pass(batch, 0, prompt, steps=min(prompt, 1), fused=True),
        _Pass(batch, prompt, new, steps=new, fused=False),
    )

    def of(skip: SkipShape | None, dense: Cost | None) -> Cost:
        layers = _layers(shape, skip, shares)
        prefill, decode = (_phase(shape, layers, each, dtype_bytes, kv_size) for each in passes)
        return Cost(prefill, decode, _cache_values(shape, layers, batch, prompt + new) * kv_size, peaks, dense)

    return of(skip, of(None, None))


def keys_seen(start: int, count: int, window: int | None = None) -> int:
    """Keys in reach of `count` tokens after the first `start`, summed: each sees itself and min(all, window)."""
    window = start + count if window is None else window

    def up_to(n: int) -> int:
        short = min(n, window)
        return short * (short + 1) // 2 + (n - short) * window

    return up_to(start + count) - up_to(start)


@dataclass(frozen=True)
class _Pass:
    """`steps` forwards over `batch` rows that together add `count` tokens to the first `start` of each row.

    fused: a key is read once for all queries, not once per query.
    """

    batch: int
    start: int
    count: int
    steps: int
    fused: bool

    @property
    def tokens(self) -> int:
        return self.batch * self.count

    @property
    def rows(self) -> float:
        return self.tokens / self.steps


@dataclass(frozen=True)
class _Layer:
    """One layer's window and routing: the share of tokens that run, and the share that leave keys and values."""

    window: int | None
    skip: SkipShape | None
    share: float

    @property
    def kept(self) -> float:
        return 1.0 if self.skip is None or self.skip.keeps_kv else self.share


def _layers(shape: LayerShape, skip: SkipShape | None, shares: list[float]) -> list[_Layer]:
    routed = skip.layers if skip else ()
    pairs = zip(shape.windows, shares, strict=True)
    return [_Layer(w, skip, share) if i in routed else _Layer(w, None, 1.0) for i, (w, share) in enumerate(pairs)]


def _phase(shape: LayerShape, layers: list[_Layer], span: _Pass, size: float, kv_size: float) -> Phase:
    """All layers, and the head for one token of each row and forward."""
    if not span.steps:
        return Phase(0, 0, 0)
    flops = 2 * shape.head_weights * span.batch * span.steps
    weights, kv = span.steps * (shape.head_weights + shape.hidden), 0.0
    for layer in layers:
        seen = layer.kept * keys_seen(span.start, span.count, layer.window) / span.count
        flops += span.tokens * _token_flops(shape, layer, seen)
        weights += span.steps * _weights_read(shape, layer, span.rows)
        reads = layer.kept if span.fused else layer.share * seen
        kv += span.tokens * shape.kv_width * (layer.kept + reads)
    return Phase(flops, weights * size, kv * kv_size)


def _token_flops(shape: LayerShape, layer: _Layer, seen: float) -> float:
    if layer.skip is None:
        return dense_work(shape, seen).flops
    run, skip = run_work(shape, layer.skip, seen), skip_work(shape, layer.skip)
    return layer.share * run.flops + (1 - layer.share) * skip.flops


def _weights_read(shape: LayerShape, layer: _Layer, rows: float) -> float:
    """Weights that one forward of `rows` independent tokens reads: a part is read if any token needs it."""
    if layer.skip is None:
        return shape.layer_weights
    run, skip = layer.skip.run_parts(shape), layer.skip.skip_parts(shape)
    any_runs, any_skips = 1 - (1 - layer.share) ** rows, 1 - layer.share**rows
    shared = sum(size for name, size in run.items() if name in skip)
    run_only = sum(size for name, size in run.items() if name not in skip)
    skip_only = sum(size for name, size in skip.items() if name not in run)
    return shared + any_runs * run_only + any_skips * skip_only


def _cache_values(shape: LayerShape, layers: list[_Layer], batch: int, tokens: int) -> float:
    return batch * shape.kv_width * sum(layer.kept * min(tokens, layer.window or tokens) for layer in layers)


def _shares(shape: LayerShape, skip: SkipShape | None, run_share: float | Sequence[float]) -> list[float]:
    """One share per layer of the model, 1 where the layer is not routed."""
    routed = skip.layers if skip else ()
    given = [float(run_share)] * len(routed) if isinstance(run_share, (int, float)) else [float(s) for s in run_share]
    if len(given) != len(routed):
        raise ValueError(f"run_share has {len(given)} shares: expected one, or {len(routed)} (one per routed layer)")
    if any(not 0 <= share <= 1 for share in given):
        raise ValueError(f"run_share={run_share}: expected shares of tokens between 0 and 1")
    by_layer = dict(zip(routed, given, strict=True))
    return [by_layer.get(layer, 1.0) for layer in range(shape.layers)]


def _check(shape: LayerShape, skip: SkipShape | None, batch: int, prompt: int, new: int) -> None:
    if batch < 1:
        raise ValueError(f"batch={batch}: expected 1 or more rows")
    for name, value in (("prompt", prompt), ("new", new)):
        if value < 0:
            raise ValueError(f"{name}={value}: expected 0 or more tokens")
    if skip and any(layer >= shape.layers for layer in skip.layers):
        raise ValueError(f"layers={skip.layers}: the model has layers 0 to {shape.layers - 1}; name layers in range")


def _ratio(dense: float, own: float) -> float:
    return dense / own if own else 1.0
