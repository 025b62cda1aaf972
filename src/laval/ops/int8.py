"""Products with weights of 8 bits and a scale per output: few rows cost the reading of a matrix, here a quarter of it.

y = bfloat16(bfloat16(x) W^T s) + b, added up in float32, however many rows there are: a token's result must not
depend on who came along. In other number types than float32 and bfloat16, and off the CPU, nothing is rounded.
"""

from __future__ import annotations

import threading

import torch
from torch.nn import functional as F

from laval.ops import rows

LARGEST = 127
FEW = 8
"""Rows up to which torch's own kernel is quickest. More are multiplied by weights converted a piece at a time."""
STRIDE = 32  # that kernel reads inputs in whole vectors, beyond the end if need be
PIECE = 1 << 20  # weights converted at once: 4 MB stay in a core's cache until the product has read them
SCRATCH = threading.local()


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [O, I] as int8 [O, I] and one bfloat16 scale per output [O]: symmetric, nearest.

    The scale is rounded before the weight is divided by it, so its eight bits cost nothing.
    """
    weight = weight.detach().float()
    scale = (weight.abs().amax(1) / LARGEST).bfloat16()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (weight / scale.float()[:, None]).round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scale


def linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None):
    """x [..., I] times the int8 weight [O, I] of scale [O] transposed, plus bias [O]: [..., O] in the dtype of x."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        y = exact_linear(x, weight, scale)
    else:
        inputs = x.reshape(-1, weight.shape[1]).to(torch.bfloat16).contiguous()
        few = 0 < len(inputs) <= FEW and weight.shape[1] % STRIDE == 0
        y = (few_rows_linear if few else many_rows_linear)(inputs, weight, scale)
        y = y.to(x.dtype).view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def exact_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The product in the number type of x, which alone rounds."""
    return F.linear(x, weight.to(x.dtype)) * scale.to(x.dtype)


def few_rows_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x bfloat16 [R, I] -> bfloat16 [R, O], for I a multiple of `STRIDE`: every core reads int8 and nothing else."""
    return torch._weight_int8pack_mm(x, weight, scale.bfloat16())


def many_rows_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x bfloat16 [R, I] -> bfloat16 [R, O], by float32 products with a piece of the outputs at a time."""
    wide = x.float()
    pieces = [rows.linear(wide, converted(part)) for part in weight.split(max(1, PIECE // weight.shape[1]))]
    y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    return y.mul_(scale.float()).bfloat16()


def converted(part: torch.Tensor) -> torch.Tensor:
    """int8 [P, I] as float32, in memory of this thread that the next call overwrites: fresh memory costs more."""
    buffer = getattr(SCRATCH, "buffer", None)
    if buffer is None or buffer.numel() < part.numel():
        with torch.inference_mode(False):  # or it could not be written outside
            buffer = SCRATCH.buffer = torch.empty(max(PIECE, part.numel()))
    return buffer[: part.numel()].view_as(part).copy_(part)
