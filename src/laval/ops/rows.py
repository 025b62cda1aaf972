"""Products of a few rows with a matrix. Reading the matrix is the whole cost, so all cores should read."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

PLAIN_DTYPES = (torch.float32, torch.float64)
MOST = 32
"""Rows up to which this beats a plain product: on two cores 1.3 to 2 times faster at 1 row, 1.5 to 4 at 2 to 8."""
COLUMNS, COLUMNS_OF_WIDE = 8, 5
"""Rows up to which a matrix takes them as columns of large parts; beyond, blocks of it win, sooner if I > O."""
BLOCK, LEAST = 288, 16
"""Most and fewest rows of a block."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear`, x [..., I] and weight [O, I], in the way that is quickest here: equal up to rounding."""
    few = x.device.type == "cpu" and x.dtype in PLAIN_DTYPES and x.numel() <= MOST * x.shape[-1]
    if not few or x.dtype != weight.dtype or torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    return few_rows_linear(x, weight, bias)


def project(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A linear module applied by `linear`; one that is more than that (LoRA, quantised) is called as it is."""
    return linear(x, module.weight, module.bias) if type(module) is nn.Linear else module(x)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`F.rms_norm` over the last axis of x [..., D], in the way that is quickest here: equal up to rounding."""
    if x.numel() != weight.numel() or x.device.type != "cpu" or torch.is_grad_enabled():
        return F.rms_norm(x, weight.shape, weight, eps)
    return one_row_rms_norm(x, weight, eps)


def few_rows_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., I] times weight [O, I] transposed, plus bias: `F.linear`, for at most `MOST` rows on a CPU.

    Falls back to `F.linear` where O cannot be parted evenly.
    """
    if parted(len(weight), torch.get_num_threads()) == 1 or not weight.is_contiguous():
        return F.linear(x, weight, bias)
    y = product(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], len(weight))
    return y if bias is None else y.add_(bias)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows x [R, I] times a contiguous weight [O, I] that can be parted: [R, O], however it comes to lie in memory.

    A product of one row runs on one core in common BLAS libraries; the same matrix seen as several, side by side,
    is read by all of them, and nothing of it is copied. What is quickest changes with the number of rows; where it
    does was measured, with weights that no cache holds.
    """
    x, (outputs, inputs) = x.contiguous(), weight.shape
    if len(x) > (COLUMNS if outputs >= inputs else COLUMNS_OF_WIDE):
        return by_blocks(x, weight)
    if len(x) in (3, 7):  # kernels go by fours
        return by_columns(F.pad(x, (0, 0, 0, 1)), weight)[:-1]
    return by_columns(x, weight)


def by_columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One large part of the matrix for each core, times rows as columns: [R, O], column by column in memory."""
    outputs, inputs = weight.shape
    parts = parted(outputs, torch.get_num_threads())
    columns = x.as_strided((parts, inputs, len(x)), (0, 1, inputs))  # a layout that bmm does not copy
    return torch.bmm(weight.view(parts, -1, inputs), columns).view(outputs, -1).t()


def by_blocks(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows times blocks of the matrix that stay in a core's cache for all of them: [R, O]."""
    outputs, inputs = weight.shape
    blocks = weight.view(blocked(outputs, torch.get_num_threads()), -1, inputs)  # [P, O / P, I]
    return torch.bmm(x.expand(len(blocks), -1, -1), blocks.mT).transpose(0, 1).reshape(-1, outputs)


def one_row_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of a single row x [..., D] with scale [D]: `F.rms_norm` in half the operations."""
    row = x.reshape(-1)
    return (x * weight).mul_((float(row.dot(row)) / row.numel() + eps) ** -0.5)


@cache
def parted(outputs: int, threads: int) -> int:
    """Into how many equal parts a matrix of `outputs` rows is cut: the fewest that keep all threads busy, or 1."""
    counts = range(threads, 4 * threads + 1, threads) if threads > 1 else ()
    return next((count for count in counts if outputs % count == 0), 1)


@cache
def blocked(outputs: int, threads: int) -> int:
    """Into how many equal blocks of at most `BLOCK` rows it is cut, all threads busy; large parts where none fit."""
    counts = (count for count in range(threads, outputs + 1, threads) if outputs % count == 0)
    count = next((count for count in counts if outputs <= count * BLOCK), outputs)
    return count if outputs >= count * LEAST else parted(outputs, threads)
