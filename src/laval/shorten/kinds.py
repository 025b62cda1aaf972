"""Stacks of layers over ragged rows, in two kinds: as published (paper), and the base family's own layers (modern)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from laval.blocks import Backbone, Context, backbone_of
from laval.blocks.paper import LAYERS, Distance, Paper, Resample, draw
from laval.blocks.reach import FREE, Reach, or_all
from laval.shorten.memory import Memory
from laval.shorten.rows import Rows


class PaperKind(nn.Module):
    """Both ends of a model of published layers, and the maker of what is between. The head is not tied.

    `distance`: the biases that all of its attentions share.
    """

    def __init__(self, paper: Paper, vocabulary: int):
        super().__init__()
        self.paper, self.width = paper, paper.width
        self.embedding = nn.Embedding(vocabulary, paper.width)
        self.drop = nn.Dropout(paper.dropout)
        self.distance = Distance(paper)
        self.output = nn.Linear(paper.width, vocabulary)
        draw(self)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids)

    def enter(self, embeds: torch.Tensor) -> torch.Tensor:
        return self.drop(embeds)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x)

    def stack(self, layers: range, last: bool) -> PaperStack:
        return PaperStack(self.paper, len(layers), self.distance)

    def resample(self) -> PaperResample:
        return PaperResample(self.paper, self.distance)

    def norm(self) -> nn.Module:
        return drawn(nn.LayerNorm(self.width))

    def reduced_norm(self) -> nn.Module:
        """In front of the inner stack: dynamic pooling has one there."""
        return self.norm() if self.paper.norm == "last" else nn.Identity()

    def upsampled_norm(self) -> nn.Module:
        """Behind upsampling: Hourglass has one there."""
        return self.norm() if self.paper.norm == "first" else nn.Identity()


def drawn(module: nn.Module) -> nn.Module:
    draw(module)
    return module


class PaperStack(nn.Module):
    """Layers of relative attention; where norms come first, a norm ends them."""

    def __init__(self, paper: Paper, layers: int, distance: Distance):
        super().__init__()
        self.layers = nn.ModuleList(LAYERS[paper.norm](paper) for _ in range(layers))
        self.norm = nn.LayerNorm(paper.width) if paper.norm == "first" else nn.Identity()
        self.shared = (distance,)  # not registered here: it belongs to the model
        draw(self)

    def forward(self, rows: Rows, memory: Memory) -> Rows:
        x, reach = rows.x, memory.reach(rows)
        distances = self.shared[0](reach, rows.spacing)
        for number, layer in enumerate(self.layers):
            x = layer(x, reach, distances, number)
        return rows.having(self.norm(x))


class PaperResample(nn.Module):
    def __init__(self, paper: Paper, distance: Distance):
        super().__init__()
        self.layer = drawn(Resample(paper))
        self.shared = (distance,)

    def forward(self, asking: torch.Tensor, readable: torch.Tensor, reach: Reach, spacing: int) -> torch.Tensor:
        """asking [B, Q, D] reads readable [B, S, D] -> [B, Q, D]."""
        return self.layer(asking, readable, reach, self.shared[0](reach, spacing))


class ModernKind(nn.Module):
    """Both ends of a base model, and the maker of stacks of its layers. The base owns its weights: none are here."""

    def __init__(self, base: nn.Module):
        super().__init__()
        self.backbone = backbone_of(base)
        self.width = self.backbone.config.hidden_size

    @property
    def embedding(self) -> nn.Module:
        return self.backbone.model.get_input_embeddings()

    @embedding.setter
    def embedding(self, value: nn.Module) -> None:
        self.backbone.model.set_input_embeddings(value)

    @property
    def output(self) -> nn.Module:
        return self.backbone.model.get_output_embeddings()

    @output.setter
    def output(self, value: nn.Module) -> None:
        self.backbone.model.set_output_embeddings(value)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids)

    def enter(self, embeds: torch.Tensor) -> torch.Tensor:
        return self.backbone.embed(inputs_embeds=embeds)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return self.backbone.head(x)

    def stack(self, layers: range, last: bool) -> ModernStack:
        # the base's own final norm ends the last stack
        return ModernStack(self.backbone, layers, nn.Identity() if last or not layers else self.norm())

    def resample(self) -> ModernResample:
        return ModernResample(self.backbone)

    def norm(self) -> nn.Module:
        final = self.backbone.decoder.norm
        return type(final)(self.width, eps=getattr(final, "variance_epsilon", getattr(final, "eps", None)))

    def reduced_norm(self) -> nn.Module:
        return nn.Identity()

    def upsampled_norm(self) -> nn.Module:
        return nn.Identity()


class ModernStack(nn.Module):
    """Some layers of the base, called as they are: RoPE by the rows' own numbers. A norm ends inner stacks (H-Net)."""

    def __init__(self, backbone: Backbone, layers: range, norm: nn.Module):
        super().__init__()
        self.norm = norm
        self.backbone = (backbone,)  # not registered here: the base owns its layers
        self.numbers = list(layers)

    def forward(self, rows: Rows, memory: Memory) -> Rows:
        x, (backbone,) = rows.x, self.backbone
        reach = memory.reach(rows)
        contexts = contexts_of(backbone, x, rows.places * rows.spacing, reach)
        kinds = backbone.layer_types()
        for number in self.numbers:
            x = backbone.blocks[number](x, replace(contexts[kinds[number]], kwargs={}))
        return rows.having(self.norm(x))


def contexts_of(backbone: Backbone, x: torch.Tensor, positions: torch.Tensor, reach: Reach) -> dict[str, Context]:
    """A context for each type of layer: x [B, T, D] at positions [B, T]."""
    turns = backbone.rotary(x, positions)
    cache = None if type(reach) is Reach else Bridge(reach)
    return {kind: Context(mask_of(backbone, kind, reach, x), *turns[kind], positions, cache) for kind in turns}


class Bridge:
    """A reach in the shape of a transformers cache."""

    def __init__(self, reach: Reach):
        self.reach = reach

    def update(self, keys, values, layer, *arguments, **options):
        return self.reach.extend(layer, keys, values)


MASKLESS = ("flash", "flex", "paged")
"""Beginnings of the names of attention implementations that take no mask of this kind."""


def mask_of(backbone: Backbone, kind: str, reach: Reach, x: torch.Tensor) -> torch.Tensor | None:
    """The reach as a mask of the base's attention implementation. ValueError for one that takes no such mask."""
    implementation = backbone.config._attn_implementation
    if implementation.startswith(MASKLESS):
        raise ValueError(
            f"attn_implementation is {implementation!r}; expected 'sdpa' or 'eager', which read ragged rows"
        )
    window = getattr(backbone.config, "sliding_window", None) if kind == "sliding_attention" else None
    visible = reach.visible
    if visible is None:
        if implementation == "sdpa" and (window is None or x.shape[1] <= window):
            return None
        places = torch.arange(x.shape[1], device=x.device)
        apart = places[:, None] - places
        visible = (apart >= 0)[None, None]
    else:
        apart = reach.distance[:, None]
    visible = visible if window is None else or_all(visible & (apart < window))
    if implementation == "sdpa":
        return visible
    return torch.zeros_like(visible, dtype=x.dtype).masked_fill(~visible, torch.finfo(x.dtype).min)


class ModernResample(nn.Module):
    """One more layer of the family, whose queries and keys come from two resolutions."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.layer = type(backbone.decoder.layers[0])(backbone.config, 0)
        self.backbone = (backbone,)
        for parameter in self.layer.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=backbone.config.initializer_range)

    def forward(self, asking: torch.Tensor, readable: torch.Tensor, reach: Reach, spacing: int) -> torch.Tensor:
        """asking [B, Q, D] reads readable [B, S, D] -> [B, Q, D]."""
        (backbone,) = self.backbone
        block = backbone.Block(self.layer)
        visible = mask_of(backbone, "full_attention", reach, asking)
        positions = reach.new.masked_fill(reach.new == FREE, 0) * spacing
        writing = context_of(backbone, readable, positions, None, Bridge(reach))
        reading = context_of(backbone, asking, reach.queries * spacing, visible, None)
        kv = block.keys_values(block.norm(readable), writing)
        if not asking.shape[1]:  # keys are written all the same
            return asking
        update = block.attend_with(block.queries(block.norm(asking)).transpose(1, 2), kv, reading)
        h = asking + update.masked_fill(~reach.seen.any(-1)[:, 0, :, None], 0)
        return h + block.feed_forward(block.feed_norm(h))


def context_of(backbone: Backbone, x, positions, mask, cache) -> Context:
    """A context for the family's first type of layer."""
    return Context(mask, *backbone.rotary(x, positions)[backbone.layer_types()[0]], positions, cache)
