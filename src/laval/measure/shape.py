"""The sizes that decide what a model costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a decoder whose layers are all alike but for their attention window.

    windows: one entry per layer, the keys a query may see, or None for all of them.
    Biases and q/k norms are left out: under 0.1 % of the weights.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int
    tied_head: bool
    windows: tuple[int | None, ...]

    @classmethod
    def from_config(cls, config: Any) -> LayerShape:
        """Read the sizes off a transformers text config. ValueError names a size that the config lacks."""
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        layers = _size(config, "num_hidden_layers")
        return cls(
            hidden=hidden,
            intermediate=_size(config, "intermediate_size"),
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or hidden // heads,
            vocab=_size(config, "vocab_size"),
            layers=layers,
            tied_head=bool(getattr(config, "tie_word_embeddings", False)),
            windows=_windows(config, layers),
        )

    @property
    def kv_width(self) -> int:
        """Values that one token adds to one layer's cache: its key and its value."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def head_weights(self) -> int:
        return self.vocab * self.hidden

    @property
    def layer_weights(self) -> int:
        return sum(self.dense_parts().values())

    @property
    def parameters(self) -> int:
        """Weights stored: all layers, final norm, embedding, and the head when it is a matrix of its own."""
        tables = 1 if self.tied_head else 2
        return self.layers * self.layer_weights + self.hidden + tables * self.head_weights

    def dense_parts(self) -> dict[str, int]:
        """Weights of one layer by part: two norm vectors, the rest matrices."""
        return {
            "norm": self.hidden,
            "keys_values": self.hidden * self.kv_width,
            "queries_output": 2 * self.hidden * self.heads * self.head_dim,
            "feed_norm": self.hidden,
            "feed_forward": 3 * self.hidden * self.intermediate,
        }


@dataclass(frozen=True)
class SkipShape:
    """Sizes of a skipping plug-in.

    layers: the routed layers. router_width: bottleneck of the router, 0 for none (a linear one counts as none).
    adapter_width: inner width of the gated adapter, 0 for none. folded: W_r W_up is one vector.
    keeps_kv: False for methods that drop a layer whole, keys and values too.
    """

    layers: tuple[int, ...]
    router_width: int = 0
    adapter_width: int = 0
    folded: bool = True
    keeps_kv: bool = True

    def __post_init__(self) -> None:
        if len(set(self.layers)) != len(self.layers) or any(layer < 0 for layer in self.layers):
            raise ValueError(f"layers={self.layers}: expected different layer indices, 0 or more")
        for name in ("router_width", "adapter_width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 (none) or more")

    def router(self, shape: LayerShape) -> int:
        """Weights of one router: W_down, its norm, and either the folded vector or W_up and W_r."""
        if not self.router_width:
            return 0
        down_and_norm = self.router_width * (shape.hidden + 1)
        return down_and_norm + (self.router_width if self.folded else (self.router_width + 1) * shape.hidden)

    def run_parts(self, shape: LayerShape) -> dict[str, int]:
        """Weights by part for a token that runs a routed layer."""
        return shape.dense_parts() | {"router": self.router(shape)}

    def skip_parts(self, shape: LayerShape) -> dict[str, int]:
        """Weights by part for a token that skips a routed layer."""
        full = self.run_parts(shape)
        names = ["keys_values"] * self.keeps_kv + ["router"] * bool(self.router_width)
        parts = {name: full[name] for name in names}
        if parts:
            parts["norm"] = full["norm"]
        if self.adapter_width:
            parts |= {"feed_norm": full["feed_norm"], "adapter": 3 * shape.hidden * self.adapter_width}
        return parts


def _size(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if value is None:
        raise ValueError(f"{name} is missing in {type(config).__name__}: expected the text config of a decoder")
    return int(value)


def _windows(config: Any, layers: int) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # Mistral and Phi 3: one window for every layer, or none
        return (window,) * layers
    return tuple(window if "sliding" in kind else None for kind in kinds)
