"""Products with weights of 8 bits: few rows cost the reading of a matrix, here little more than a quarter of it.

A matrix [O, I] lies in blocks of `WIDTH` outputs, and a block has a row for each input: `WIDTH` levels of 8 bits, then
the step between levels and the lowest one. torch's quantised embedding bags are kept like that, and a product with a
vector is a sum of such rows, each times a number: that kernel reads 8 bits and nothing else, and neither rounds what
comes in nor what goes out. Sums are float32, or the number type of x if that is wider.

A scale for each output, its greatest weight, is divided out before levels are chosen and multiplied with the product,
so weight = scale * (lowest + step * level): else an output of large weights would coarsen the others of its block. A
step is 2 / 255 of the scale at most, so no weight moves further than with one step for all weights of its output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import torch
from torch.nn import functional as F

WIDTH = 96
"""Outputs of a block: as many sums as that kernel keeps in registers (of 32 bytes), so that it reads a row once."""
EXTRA, SCALE = 8, 4  # bytes of step and lowest, and of the scale
LEVELS = 255
FEW = 8
"""Rows up to which that kernel is quickest. More are multiplied by weights unpacked a piece at a time."""
PIECE = 1 << 20  # weights unpacked at once
SCRATCH = threading.local()
SUM_ROWS = torch.ops.quantized.embedding_bag_byte_rowwise_offsets.default
UNPACK = torch.ops.quantized.embedding_bag_byte_unpack.default


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [O, I] as a table uint8 [B * I, WIDTH + EXTRA] of B blocks, nearest levels, and a scale float32 [O]."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1)
    return table_of(weight / scale.where(scale > 0, 1.0)[:, None]), scale


def table_of(weight: torch.Tensor) -> torch.Tensor:
    """A weight [O, I] in blocks, the last one filled up with zeros."""
    outputs, inputs = weight.shape
    blocks = F.pad(weight, (0, 0, 0, -outputs % WIDTH)).view(-1, WIDTH, inputs)
    rows = blocks.transpose(1, 2).reshape(-1, WIDTH)  # [B * I, WIDTH]
    lowest = rows.amin(1, keepdim=True)
    step = (rows.amax(1, keepdim=True) - lowest) / LEVELS
    levels = ((rows - lowest) / step.where(step > 0, 1.0)).round_().clamp_(0, LEVELS)
    return torch.cat((levels.to(torch.uint8), torch.cat((step, lowest), 1).view(torch.uint8)), 1)


def unpack(table: torch.Tensor, scale: torch.Tensor, inputs: int) -> torch.Tensor:
    """The weight float32 [O, I] that a table and its scale [O] stand for."""
    step, lowest = table.view(torch.float32)[:, WIDTH // 4 :].split(1, dim=1)
    rows = lowest + step * table[:, :WIDTH]
    return rows.view(-1, inputs, WIDTH).transpose(1, 2).reshape(-1, inputs)[: len(scale)] * scale[:, None]


def linear(
    x: torch.Tensor, table: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [..., I] times the weight [O, I] packed in `table` and `scale`, transposed, plus bias [O]: [..., O] like x."""
    inputs = x.shape[-1]
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return F.linear(x, unpack(table, scale, inputs).to(x.dtype), None if bias is None else bias.to(x.dtype))
    rows = x.reshape(-1, inputs).float()
    few = 0 < len(rows) <= FEW and has_kernel()
    y = scaled((few_rows_linear if few else many_rows_linear)(rows, table)[:, : len(scale)], scale, bias)
    return y.to(x.dtype).reshape(*x.shape[:-1], len(scale))


def scaled(y: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Sums [..., O] times scale plus bias, one operation; y may be written over."""
    return y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale)


def part_linear(x: torch.Tensor, table: torch.Tensor, scale: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """Outputs `start` to `start + count` of the product alone, [..., count]: only their blocks are read."""
    first, last, inputs = start // WIDTH, -(-(start + count) // WIDTH), x.shape[-1]
    y = linear(x, table[first * inputs : last * inputs], scale[first * WIDTH : last * WIDTH])
    return y.narrow(-1, start - first * WIDTH, count)


def row_map(table: torch.Tensor, scale: torch.Tensor, inputs: int, bias: torch.Tensor | None = None) -> Callable:
    """`linear` for one row, a vector [I] -> [O], with what does not change found beforehand."""
    blocks, outputs = len(table) // inputs, len(scale)
    rows, starts = places(blocks, 1, inputs)
    kernel = has_kernel() and table.device.type == "cpu"
    added = None if bias is None else bias.float()

    def product(x: torch.Tensor) -> torch.Tensor:
        if not kernel or x.dtype != torch.float32:
            return linear(x, table, scale, bias)
        y = SUM_ROWS(table, rows, starts, False, 0, False, spread(x, blocks, 1)).view(-1)
        return scaled(y if len(y) == outputs else y[:outputs], scale, added)

    return product


def few_rows_linear(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """x float32 [R, I] -> [R, B * WIDTH]: every core reads its blocks once for all rows."""
    count, inputs = x.shape
    blocks = len(table) // inputs
    sums = SUM_ROWS(table, *places(blocks, count, inputs), per_sample_weights=spread(x, blocks, count))
    return sums.view(blocks, count, WIDTH).transpose(0, 1).flatten(1)


def many_rows_linear(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """x float32 [R, I] -> [R, B * WIDTH], by float32 products with some blocks at a time."""
    inputs = x.shape[-1]
    parts = table.split(inputs * max(1, PIECE // (inputs * WIDTH)))
    blocks = (UNPACK(part).view(-1, inputs, WIDTH) for part in parts)
    pieces = [torch.bmm(x.expand(len(each), -1, -1), each) for each in blocks]  # [b, R, WIDTH]
    return torch.cat(pieces).transpose(0, 1).flatten(1)


@cache
def has_kernel() -> bool:
    """Whether torch was built with the kernel; elsewhere it has a slow stand-in."""
    return "fbgemm" in torch.backends.quantized.supported_engines


@cache
def places(blocks: int, count: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows of a table make each sum, and where each sum begins: the rows of a block, once for each row of x."""
    with torch.inference_mode(False):
        rows = torch.arange(blocks * inputs, dtype=torch.int32).view(blocks, 1, inputs)
        starts = torch.arange(0, blocks * count * inputs, inputs, dtype=torch.int32)
        return rows.expand(-1, count, -1).reshape(-1).contiguous(), starts


def spread(x: torch.Tensor, blocks: int, count: int) -> torch.Tensor:
    """x [R, I] once for each block, [B * R * I], in memory of this thread that the next call overwrites."""
    made = SCRATCH.__dict__
    key = blocks, count, x.shape[-1]
    if key not in made:
        with torch.inference_mode(False):  # or it could not be written outside
            buffer = torch.empty(key)
        made[key] = buffer, buffer.view(-1)
    buffer, flat = made[key]
    buffer.copy_(x)
    return flat
