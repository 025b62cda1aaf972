"""Modules as maps of one row, a plain vector, in the fewest operations: equal to the modules up to rounding.

Maps are made of the weights as they are: a weight replaced later is not seen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from laval.ops.rows import PLAIN_DTYPES, parted

Map = Callable[[torch.Tensor], torch.Tensor]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x [H, Dh] by cos and sin [Dh], the sign of the swapped half in the sine."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def map_of(module: nn.Module) -> Map:
    """A projection [I] -> [O]: a plain linear module by `product_of`, a quantised one by its own map, others whole."""
    if hasattr(module, "row_map"):
        return module.row_map()
    if type(module) is not nn.Linear:
        return lambda x: module(x.view(1, 1, -1)).view(-1)
    bias, product = module.bias, product_of(module.weight.detach())
    if bias is None:
        return product
    bias = bias.detach()
    return lambda x: product(x).add_(bias)


def beside(first: nn.Module, second: nn.Module, third: torch.Tensor | None) -> Callable[[torch.Tensor], tuple]:
    """Two small projections and the product of a weight [b, I], if there is one, of the same row.

    Plain ones are done at once, by a copy of their weights as they are now; quantised ones without the third.
    """
    joint = joined(first, second, third)
    if joint is None:
        both = pair_of(first, second)
        return lambda x: (*both(x), None if third is None else third.mv(x))
    weight, bias, sizes = joint
    product = product_of(weight)
    if bias is None:
        return lambda x: product(x).split(sizes)[:3]
    return lambda x: product(x).add_(bias).split(sizes)[:3]


def pair_of(first: nn.Module, second: nn.Module) -> Callable[[torch.Tensor], tuple]:
    """Two projections of the same row: as one, by a copy of their weights, where the first knows how."""
    joint = first.joined(second) if hasattr(first, "joined") else None
    if joint is None:
        maps = map_of(first), map_of(second)
        return lambda x: tuple(each(x) for each in maps)
    product, sizes = map_of(joint), (first.out_features, second.out_features)
    return lambda x: product(x).split(sizes)


def joined(first: nn.Module, second: nn.Module, third: torch.Tensor | None):
    """One weight, one bias or None, and their parts' sizes, for what `beside` does at once; None if it cannot."""
    plain = type(first) is type(second) is nn.Linear and first.weight.dtype in PLAIN_DTYPES
    if not plain or (first.bias is None) != (second.bias is None):
        return None
    weights = [first.weight.detach(), second.weight.detach()]
    weights.append(first.weight.new_zeros(0, first.in_features) if third is None else third.to(first.weight.dtype))
    sizes = [len(weight) for weight in weights]
    sizes.append(-sum(sizes) % torch.get_num_threads())  # spare, so that the rows can be parted evenly
    weight = F.pad(torch.cat(weights), (0, 0, 0, sizes[3]))
    if first.bias is None:
        return weight, None, sizes
    return weight, F.pad(torch.cat((first.bias.detach(), second.bias.detach())), (0, sizes[2] + sizes[3])), sizes


def product_of(weight: torch.Tensor) -> Map:
    """The product of weight [O, I] with a row [I], every core reading its part of the weight."""
    outputs, inputs = weight.shape
    parts = parted(outputs, torch.get_num_threads())
    if parts == 1 or weight.dtype not in PLAIN_DTYPES or not weight.is_contiguous():
        return weight.mv
    matrices = weight.view(parts, -1, inputs)  # [P, O / P, I]
    size, steps = (parts, inputs, 1), (0, 1, inputs)
    return lambda x: torch.bmm(matrices, x.as_strided(size, steps)).view(-1)


def norm_of(module: nn.Module | None, dtype: torch.dtype) -> Map | None:
    """An RMSNorm over the last axis; other norms, and other dtypes than float32, by the module itself."""
    eps = getattr(module, "variance_epsilon", None)  # Gemma's norms have another name for it, and add 1
    if module is None or eps is None or dtype != torch.float32 or module.weight.dtype != dtype:
        return module
    weight = module.weight.detach()
    width = weight.numel()

    def norm(x: torch.Tensor) -> torch.Tensor:
        if x.dim() > 1:  # heads
            return F.rms_norm(x, weight.shape, weight, eps)
        return (x * weight).mul_((float(x.dot(x)) / width + eps) ** -0.5)

    return norm
