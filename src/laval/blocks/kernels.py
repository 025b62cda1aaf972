"""How a block's products, norms and attention are computed: as transformers does, or quickly for few or many rows."""

from __future__ import annotations

import sys
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from laval.ops.attention import causal_rows, masked_rows
from laval.ops.norms import two_pass_rms_norm
from laval.ops.rows import linear, project, rms_norm

# Widest share of rows for which blocks of chosen rows beat the fused causal kernel over all rows, zeros included.
BLOCKS_SHARE = 0.85


class Kernels(Protocol):
    """The arithmetic of one block. Shapes: x, u [..., D]; queries [B, H, T, Dh]; kv 2 x [B, Hkv, S, Dh].

    rotate: rotary position embedding (RoFormer, Su et al. 2021, equation 34, halves instead of pairs) of x
    [B, H, T, Dh] or [R, H, Dh] by what `turn` made of cos and sin [B, T, Dh] or [R, Dh].
    mix, mix_rows: attention of all rows -> [B, T, H * Dh]; of rows [R] out of shape [B, T], queries [R, H, Dh] ->
    [R, H * Dh].
    """

    def whole(self, block, x: torch.Tensor, context) -> torch.Tensor: ...
    def turn(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...
    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor: ...
    def norm(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor: ...
    def linear(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor: ...
    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...
    def mlp(self, block, u: torch.Tensor) -> torch.Tensor: ...
    def mix(self, block, queries: torch.Tensor, kv, context) -> torch.Tensor: ...
    def mix_rows(self, block, queries: torch.Tensor, kv, context, rows, shape) -> torch.Tensor: ...


class Stock:
    """The layer's own modules and transformers' own attention function: bit for bit."""

    def whole(self, block, x, context):
        return block.stock(x, context)

    def turn(self, cos, sin):
        return cos, sin

    def rotate(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)

    def norm(self, module, x):
        return module(x)

    def linear(self, module, x):
        return module(x)

    def product(self, x, weight):
        return F.linear(x, weight)

    def mlp(self, block, u):
        return block.layer.mlp(u)

    def mix(self, block, queries, kv, context):
        module = block.attention
        eager = sys.modules[type(module).__module__].eager_attention_forward
        function = ALL_ATTENTION_FUNCTIONS.get_interface(block.implementation, eager)
        mixed, _ = function(
            module,
            queries,
            *kv,
            context.mask,
            dropout=module.attention_dropout if module.training else 0.0,
            scaling=module.scaling,
            position_ids=context.position_ids,
            **block.attention_options(),
            **context.kwargs,
        )
        batch, _, length, _ = queries.shape
        return mixed.reshape(batch, length, -1).contiguous()

    def mix_rows(self, block, queries, kv, context, rows, shape):
        return block.seated(queries, kv, context, rows, shape)


class FewRows(Stock):
    """For inference over a few rows on a CPU: equal up to rounding, with fewer operations and every core reading.

    Whatever is not a plain module of this kind (LoRA, quantised, half precision) is called as it is.
    """

    def whole(self, block, x, context):
        return block.compose(x, context)

    def turn(self, cos, sin):
        """The sign of the swapped half goes into the sine, once for all layers."""
        half = sin.shape[-1] // 2
        return cos, torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)

    def rotate(self, x, cos, sin):
        return torch.addcmul(x * cos.unsqueeze(1), x.roll(x.shape[-1] // 2, dims=-1), sin.unsqueeze(1))

    def norm(self, module, x):
        eps = plain_eps(module, x)
        return module(x) if eps is None else rms_norm(x, module.weight, eps)

    def linear(self, module, x):
        return project(module, x)

    def product(self, x, weight):
        return linear(x, weight)

    def mlp(self, block, u):
        gate, up = block.gate_up(u)
        mlp = block.layer.mlp
        return self.linear(mlp.down_proj, activation(mlp)(gate).mul_(up))

    def mix(self, block, queries, kv, context):
        batch, heads, length, _ = queries.shape
        if block.implementation != "sdpa" or context.kwargs or not shared_by_heads(context.mask, length):
            return super().mix(block, queries, kv, context)
        group = heads // kv[0].shape[1]
        # heads that share keys ask as rows of one head, so that nobody copies keys
        packed = queries.reshape(batch, -1, group * length, queries.shape[-1])  # [B, Hkv, G * T, Dh]
        mask = context.mask if length == 1 else context.mask.repeat(1, 1, group, 1)
        mixed = F.scaled_dot_product_attention(packed, *kv, attn_mask=mask, scale=block.attention.scaling)
        return mixed.view(batch, heads, length, -1).transpose(1, 2).reshape(batch, length, -1)


class ManyRows(FewRows):
    """For inference over many rows on a CPU: equal up to rounding, with fewer passes over memory than stock.

    Rows that ask attend in sorted blocks over the keys in their reach.
    """

    def turn(self, cos, sin):
        return cos, sin

    def rotate(self, x, cos, sin):
        half = x.shape[-1] // 2
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        turned = x * cos
        turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
        turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
        return turned

    def norm(self, module, x):
        eps = plain_eps(module, x)
        return module(x) if eps is None else two_pass_rms_norm(x, module.weight, eps)

    def mix(self, block, queries, kv, context):
        return Stock.mix(self, block, queries, kv, context)

    def mix_rows(self, block, queries, kv, context, rows, shape):
        few = context.mask is not None or len(rows) <= BLOCKS_SHARE * shape.numel()
        if not (few and in_blocks(block, queries, kv, context, rows)):
            return super().mix_rows(block, queries, kv, context, rows, shape)
        batch, length = shape
        counts = torch.bincount(rows // length, minlength=batch).tolist()
        parts = zip(queries.split(counts), (rows % length).split(counts), strict=True)
        return torch.cat([self.mix_sequence(block, *part, kv, context.mask, b) for b, part in enumerate(parts)])

    def mix_sequence(self, block, queries, tokens, kv, mask, index: int):
        """Rows at places `tokens` [R] of one sequence: queries [R, H, Dh] -> [R, H * Dh]."""
        keys, values = kv[0][index], kv[1][index]
        if mask is None:  # transformers gives sdpa no mask only where key j is visible to token i if j <= i
            return causal_rows(queries, keys, values, tokens, block.attention.scaling)
        visible = mask[min(index, len(mask) - 1), 0].index_select(0, tokens)  # [R, S]
        return masked_rows(queries, keys, values, visible, block.attention.scaling)


def in_blocks(block, queries, kv, context, rows) -> bool:
    """Whether rows can attend in blocks: the plain sdpa function, visibility shared by heads, rows in order."""
    mask = context.mask
    # keys with a channel more say who may be read: the block itself knows how
    plain = block.implementation == "sdpa" and not context.kwargs and kv[0].shape[-1] == queries.shape[-1]
    shared = mask is None or (mask.dtype == torch.bool and mask.shape[1] == 1)
    return plain and shared and bool((rows.diff() > 0).all())


def plain_eps(module: nn.Module, x: torch.Tensor) -> float | None:
    """The epsilon of a plain RMSNorm in float32 throughout; None for any other norm."""
    eps = getattr(module, "variance_epsilon", None)  # Gemma's norms have another name for it, and add 1
    return eps if x.dtype == torch.float32 == getattr(module.weight, "dtype", None) else None


def shared_by_heads(mask, length: int) -> bool:
    """Whether one mask [B, 1, T, S] serves every head; without a mask, rows after the first must not see them all."""
    return length == 1 if mask is None else mask.shape[1] == 1


def activation(mlp: nn.Module):
    """The activation between the products of a gated feed-forward network; Phi 3 has a name of its own for it."""
    return getattr(mlp, "act_fn", None) or mlp.activation_fn


STOCK = Stock()
FEW_ROWS = FewRows()
MANY_ROWS = ManyRows()
