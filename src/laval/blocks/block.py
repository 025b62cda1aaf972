"""One decoder layer as three steps, and the model around the layers. Families override only what differs.

The base classes spell out the plain arrangement: h = x + attention(norm(x)); y = h + feed_forward(norm(h)).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from laval.blocks.kernels import STOCK, Kernels
from laval.blocks.parts import Parts
from laval.blocks.seats import seats
from laval.compat import cache_argument, keep_rows, mask_argument, update_cache

MASKS = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}


@dataclass(frozen=True)
class Context:
    """What one layer needs beside its hidden states: exactly what the transformers model would hand it.

    Shapes: mask as the attention implementation wants it (4-D tensor, None, ...), cos and sin [B or 1, T, Dh],
    position_ids [B or 1, T]. Under other kernels than stock, cos and sin are what
    their `turn` made of them. `kwargs` belongs to one layer and one call: a paged cache rewrites it.
    """

    mask: object
    cos: torch.Tensor
    sin: torch.Tensor
    position_ids: torch.Tensor
    cache: object = None
    kwargs: dict = field(default_factory=dict)


class Block:
    """One transformers decoder layer as three steps over its own, untouched weights.

    Every row writes keys and values; only the rows that ask pay for queries, output projection and feed-forward.
    `kernels`: how its products, norms and attention are computed.
    """

    def __init__(self, layer: torch.nn.Module, kernels: Kernels = STOCK):
        self.layer = layer
        self.kernels = kernels
        self.attention = layer.self_attn
        self.index = layer.self_attn.layer_idx

    def __call__(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """The whole layer, nobody skipping: x [B, T, D] -> [B, T, D]."""
        return self.kernels.whole(self, x, context)

    def stock(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """The transformers layer itself: x [B, T, D] -> [B, T, D]."""
        return self.layer(
            x,
            attention_mask=context.mask,
            position_ids=context.position_ids,
            position_embeddings=(context.cos, context.sin),
            **cache_argument(context.cache),
            **context.kwargs,
        )

    def compose(self, x: torch.Tensor, context: Context) -> torch.Tensor:
        """The three steps one after another: bit for bit what `stock` gives, with stock kernels."""
        z = self.norm(x)
        kv = self.keys_values(z, context)
        h = x + self.attend(z, kv, context)
        return h + self.feed_forward(self.feed_norm(h))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's own input norm, x [..., D] -> z [..., D]."""
        return self.kernels.norm(self.layer.input_layernorm, x)

    def keys_values(self, z: torch.Tensor, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every row, appended to the cache if there is one: z [B, T, D] -> 2 x [B, Hkv, S, Dh]."""
        return self.remember(self.keys(z).transpose(1, 2), self.values(z).transpose(1, 2), context)

    def attend(self, z, kv, context: Context, rows: torch.Tensor | None = None) -> torch.Tensor:
        """The attention branch's residual update, for all rows or only for those that ask.

        z [B, T, D]; rows: distinct int64 indices into B*T, [R]. Returns [B, T, D], or [R, D] when rows are given.
        """
        if rows is None:
            return self.attend_with(self.queries(z).transpose(1, 2), kv, context)
        return self.attend_rows(z, kv, context, rows)

    def feed_norm(self, h: torch.Tensor) -> torch.Tensor:
        """The norm in front of the feed-forward network, h [..., D] -> u [..., D]."""
        return self.kernels.norm(self.layer.post_attention_layernorm, h)

    def feed_forward(self, u: torch.Tensor) -> torch.Tensor:
        """The feed-forward branch's residual update, u [..., D] -> [..., D]."""
        return self.kernels.mlp(self, u)

    # What families override: projections to heads, before RoPE, over any leading shape.

    def queries(self, z: torch.Tensor) -> torch.Tensor:
        return self.heads(self.kernels.linear(self.attention.q_proj, z))  # [..., H, Dh]

    def keys(self, z: torch.Tensor) -> torch.Tensor:
        return self.heads(self.kernels.linear(self.attention.k_proj, z))  # [..., Hkv, Dh]

    def values(self, z: torch.Tensor) -> torch.Tensor:
        return self.heads(self.kernels.linear(self.attention.v_proj, z))  # [..., Hkv, Dh]

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return self.kernels.rotate(x, cos, sin)

    def attention_update(self, mixed: torch.Tensor) -> torch.Tensor:
        return self.kernels.linear(self.attention.o_proj, mixed)  # [..., D]

    def gate_up(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two products in front of the activation of a gated feed-forward network."""
        mlp = self.layer.mlp
        return self.kernels.linear(mlp.gate_proj, u), self.kernels.linear(mlp.up_proj, u)

    def attention_options(self) -> dict:
        """What this family's attention hands the attention function beyond scaling and dropout."""
        return {}

    def parts(self) -> Parts | None:
        """The layer's modules by what they do, for `Lane`; None if their arrangement is not the plain one."""
        layer, attention, mlp = self.layer, self.attention, self.layer.mlp
        return Parts(
            norm=layer.input_layernorm,
            queries=attention.q_proj,
            keys=attention.k_proj,
            values=attention.v_proj,
            output=attention.o_proj,
            feed_norm=layer.post_attention_layernorm,
            gate=mlp.gate_proj,
            up=mlp.up_proj,
            down=mlp.down_proj,
            activation=mlp.act_fn,
        )

    # The machinery shared by all families.

    def heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.attention.head_dim))

    def remember(self, keys, values, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.rotate(keys, context.cos, context.sin)
        if context.cache is None:
            return keys, values
        return update_cache(context.cache, keys, values, self.index, context.kwargs)

    def attend_with(self, queries: torch.Tensor, kv, context: Context) -> torch.Tensor:
        """Attention of every row, from queries [B, H, T, Dh] before RoPE to the update [B, T, D]."""
        return self.attention_update(self.mix(self.rotate(queries, context.cos, context.sin), kv, context))

    def attend_rows(self, z, kv, context: Context, rows: torch.Tensor) -> torch.Tensor:
        """Attention of the rows that ask only: z [B, T, D] -> [R, D]."""
        asking = z.flatten(0, 1).index_select(0, rows)  # [R, D]
        queries = self.queries(asking)  # [R, H, Dh]
        if rows.numel() == 0:
            return self.attention_update(queries.flatten(1))
        turns = (turn.flatten(0, 1) for turn in (context.cos, context.sin))
        queries = self.rotate(queries, *(turn.index_select(0, rows % len(turn)) for turn in turns))
        mixed = self.kernels.mix_rows(self, queries, kv, context, rows, z.shape[:2])  # [R, H * Dh]
        return self.attention_update(mixed)

    def seated(self, queries, kv, context: Context, rows, shape) -> torch.Tensor:
        """Rows among rows that nobody reads, under one mask: rotated queries [R, H, Dh] -> [R, H * Dh]."""
        batch, length = shape
        place = seats(rows, batch, length, kv[0].shape[2], context, self.implementation)
        buffer = queries.new_zeros(batch * place.width, *queries.shape[1:]).index_copy(0, place.slots, queries)
        buffer = buffer.unflatten(0, (batch, place.width)).transpose(1, 2)  # [B, H, width, Dh]
        mixed = self.mix(buffer, kv, replace(context, mask=place.mask))  # [B, width, H * Dh]
        return mixed.flatten(0, 1).index_select(0, place.slots)

    @property
    def implementation(self) -> str:
        return self.attention.config._attn_implementation

    def mix(self, queries: torch.Tensor, kv, context: Context) -> torch.Tensor:
        """Attention proper: rotated queries [B, H, T, Dh] -> [B, T, H * Dh]."""
        return self.kernels.mix(self, queries, kv, context)


class Backbone:
    """The steps of one model around its layers. Holds no parameters of its own.

    `blocks` has one Block per decoder layer; `model` is the stock causal language model.
    """

    Block = Block

    def __init__(self, model: torch.nn.Module, kernels: Kernels = STOCK):
        self.model = model
        self.kernels = kernels
        self.config = model.config.get_text_config()
        self.decoder = model.get_decoder()
        self.blocks = [self.Block(layer, kernels) for layer in self.decoder.layers]

    def embed(self, input_ids=None, inputs_embeds=None) -> torch.Tensor:
        """Token embeddings as the first layer reads them, [B, T] -> x [B, T, D].

        ValueError unless exactly one of the two is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        return self.decoder.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def contexts(self, x, attention_mask=None, position_ids=None, cache=None, **kwargs) -> list[Context]:
        """One Context per layer, before any layer has run.

        x [B, T, D]; attention_mask [B, S], a 4-D mask, a dict of masks by layer type, or None; position_ids
        [B or 1, T], by default counted on from the cache. `kwargs` go to the attention function.
        """
        if position_ids is None:
            seen = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(x.shape[1], device=x.device)[None] + seen
        masks = self.masks(x, attention_mask, position_ids, cache)
        turns = {kind: self.kernels.turn(*turn) for kind, turn in self.rotary(x, position_ids).items()}
        return [Context(masks[kind], *turns[kind], position_ids, cache, dict(kwargs)) for kind in self.layer_types()]

    def head(self, x: torch.Tensor, logits_to_keep: int | torch.Tensor = 0) -> torch.Tensor:
        """Final norm and language-model head, x [B, T, D] -> logits [B, kept, V]."""
        states = keep_rows(self.decoder.norm(x), logits_to_keep)  # the norm's own call: readers of states hook it
        return self.kernels.linear(self.model.get_output_embeddings(), states)

    # What families override.

    def layer_types(self) -> list[str]:
        """Each layer's key in `MASKS`."""
        return ["full_attention"] * len(self.blocks)

    def rotary(self, x, position_ids) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """cos and sin [B or 1, T, Dh] for each layer type."""
        return dict.fromkeys(self.layer_types(), self.decoder.rotary_emb(x, position_ids))

    def masks(self, x, attention_mask, position_ids, cache) -> dict[str, object]:
        if isinstance(attention_mask, dict):
            return attention_mask
        return {
            kind: MASKS[kind](
                config=self.config,
                inputs_embeds=x,
                attention_mask=attention_mask,
                position_ids=position_ids,
                **mask_argument(cache),
            )
            for kind in set(self.layer_types())
        }
