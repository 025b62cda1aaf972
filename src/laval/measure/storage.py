"""Sizes in bytes instead of weights, for models that keep their weights in more than one number type."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from laval.measure.cost import Cost, Phase
from laval.measure.shape import LayerShape, SkipShape
from laval.ops.int8 import EXTRA, SCALE, WIDTH


@dataclass(frozen=True)
class Int8Shape(LayerShape):
    """A LayerShape whose parts are bytes: packed int8 matrices; norms, and what embeds, of `wide` bytes a value."""

    wide: int = 4

    @classmethod
    def of(cls, shape: LayerShape, wide: int) -> Int8Shape:
        return cls(**{field.name: getattr(shape, field.name) for field in fields(shape)}, wide=wide)

    @property
    def head_weights(self) -> int:
        """The head; and the rest of the row beside it, which `cost` counts as one byte a value."""
        return packed_bytes(self.vocab, self.hidden) + (self.wide - 1) * self.hidden

    def dense_parts(self) -> dict[str, int]:
        queries, norm = self.heads * self.head_dim, self.hidden * self.wide
        inner, outer = packed_bytes(self.intermediate, self.hidden), packed_bytes(self.hidden, self.intermediate)
        return {
            "norm": norm,
            "keys_values": 2 * packed_bytes(self.kv_width // 2, self.hidden),
            "queries_output": packed_bytes(queries, self.hidden) + packed_bytes(self.hidden, queries),
            "feed_norm": norm,
            "feed_forward": 2 * inner + outer,
        }


def packed_bytes(outputs: int, inputs: int) -> int:
    """Bytes of a matrix [O, I] in whole blocks, and of a scale for each output."""
    return -(-outputs // WIDTH) * inputs * (WIDTH + EXTRA) + SCALE * outputs


@dataclass(frozen=True)
class WideSkip(SkipShape):
    """A SkipShape whose routers and adapters are counted in bytes, `wide` of them a weight."""

    wide: int = 4

    @classmethod
    def of(cls, skip: SkipShape, wide: int) -> WideSkip:
        return cls(**{field.name: getattr(skip, field.name) for field in fields(skip)}, wide=wide)

    def router(self, shape: LayerShape) -> int:
        return self.wide * super().router(shape)

    def skip_parts(self, shape: LayerShape) -> dict[str, int]:
        parts = super().skip_parts(shape)
        return parts | {name: self.wide * size for name, size in parts.items() if name == "adapter"}


def with_bytes(counted: Cost, stored: Cost) -> Cost:
    """`counted` with the weight bytes of `stored`, which was made from shapes in bytes; the dense costs likewise."""
    return replace(
        counted,
        prefill=_phase(counted.prefill, stored.prefill),
        decode=_phase(counted.decode, stored.decode),
        dense=with_bytes(counted.dense, stored.dense) if counted.dense else None,
    )


def _phase(counted: Phase, stored: Phase) -> Phase:
    return replace(counted, weight_bytes=stored.weight_bytes)
