"""Products of a few rows with a matrix. Reading the matrix is the whole cost, so all cores should read."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

PLAIN_DTYPES = (torch.float32, torch.float64)
MOST = 32
"""Rows up to which this beats a plain product: on two cores 1.3 to 2 times faster at 1 row, 1.5 to 4 at 2 to 8."""


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

    A product of one row runs on one core in common BLAS libraries; the same matrix seen as several, side by side,
    is read by all of them. Nothing is copied. Falls back to `F.linear` where O cannot be parted evenly.
    """
    outputs, inputs = weight.shape
    parts = parted(outputs, torch.get_num_threads())
    if parts == 1 or not weight.is_contiguous():
        return F.linear(x, weight, bias)
    x = x.contiguous()
    rows = x.numel() // inputs
    columns = x.as_strided((parts, inputs, rows), (0, 1, inputs))  # the layout that the batched product does not copy
    y = torch.bmm(weight.view(parts, -1, inputs), columns)  # [P, O / P, R]
    y = y if rows == 1 else y.flatten(0, 1).t()  # [R, O]
    y = y.reshape(*x.shape[:-1], outputs)
    return y if bias is None else y.add_(bias)


def one_row_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of a single row x [..., D] with scale [D]: `F.rms_norm` in half the operations."""
    row = x.reshape(-1)
    return (x * weight).mul_((float(row.dot(row)) / row.numel() + eps) ** -0.5)


@cache
def parted(outputs: int, threads: int) -> int:
    """Into how many equal parts a matrix of `outputs` rows is cut: the fewest that keep all threads busy, or 1."""
    counts = range(threads, 4 * threads + 1, threads) if threads > 1 else ()
    return next((count for count in counts if outputs % count == 0), 1)
