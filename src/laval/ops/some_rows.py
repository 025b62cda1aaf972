"""Modules as maps of a few rows [R, D] of one sequence: `one_row` for more rows than one, equal up to rounding.

A map keeps views of the weights it was made from: changes in place are seen, a replaced weight is not. What it
returns may lie column by column in memory, as the products leave it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops.one_row import Map, joined
from laval.ops.rows import PLAIN_DTYPES, parted, product


def map_of(module: nn.Module) -> Map:
    """A projection [R, I] -> [R, O]: a plain linear module by `product_of`, any other by itself."""
    if type(module) is not nn.Linear:
        return lambda x: module(x[None])[0]
    bias, product = module.bias, product_of(module.weight.detach())
    if bias is None:
        return product
    bias = bias.detach()
    return lambda x: product(x).add_(bias)


def beside(first: nn.Module, second: nn.Module, third: torch.Tensor | None) -> Callable[[torch.Tensor], tuple]:
    """`one_row.beside` for rows [R, I]."""
    joint = joined(first, second, third)
    if joint is None:
        maps = map_of(first), map_of(second), torch.zeros_like if third is None else product_of(third)
        return lambda x: tuple(each(x) for each in maps)
    weight, bias, sizes = joint
    product = product_of(weight)
    if bias is None:
        return lambda x: product(x).split(sizes, dim=-1)[:3]
    return lambda x: product(x).add_(bias).split(sizes, dim=-1)[:3]


def product_of(weight: torch.Tensor) -> Map:
    """The product of weight [O, I] with rows [R, I], every core reading its part of the weight once for all rows."""
    plain = weight.dtype in PLAIN_DTYPES and weight.is_contiguous()
    if not plain or parted(len(weight), torch.get_num_threads()) == 1:
        return lambda x: F.linear(x, weight)
    return lambda x: product(x, weight)


def norm_of(module: nn.Module | None, dtype: torch.dtype) -> Map | None:
    """An RMSNorm over the last axis; other norms, and other dtypes than float32, by the module itself."""
    eps = getattr(module, "variance_epsilon", None)  # Gemma's norms have another name for it, and add 1
    if module is None or eps is None or dtype != torch.float32 or module.weight.dtype != dtype:
        return module
    return rms_norm_of(module.weight.detach(), eps)


def rms_norm_of(weight: torch.Tensor, eps: float) -> Map:
    """RMSNorm over the last axis by scale [D]."""
    small, share = torch.tensor(eps, dtype=weight.dtype), 1 / weight.numel()

    def norm(x: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * torch.addcmul(small, length, length, value=share).rsqrt_()).mul_(weight)

    return norm
