"""Attention with Transformer-XL's relative positions (arXiv 1901.02860, section 3.3), without memory."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def sinusoids(distance: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Sines, then cosines, of integer distances [N] -> [N, width], in `dtype`."""
    # published weights know rates rounded to float32, also where the rest is float64
    rates = 1 / 10000 ** (torch.arange(0, width, 2, device=distance.device, dtype=torch.float32) / width)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    angles = distance.to(wide)[:, None] * rates.to(wide)
    return torch.cat((angles.sin(), angles.cos()), -1).to(dtype)


def relative_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor],
    distance: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Weighted values by content and by distance: queries [B, H, Q, Dh], keys, values [B, H, S, Dh] -> [B, H, Q, Dh].

    table [H, N, Dh]: what a distance of n rows stands for. biases: of the content and of the position, [H, Dh] each.
    distance int64 [B, Q, S]: rows from key to query, negative where the key is not to be read; a query that reads
    nothing gets zeros. None: keys are the queries' own rows, each reads itself and those before it.
    """
    content, position = (bias[:, None] for bias in biases)
    by_place = (queries + position) @ table.mT  # [B, H, Q, N]
    if distance is None:
        by_place, seen = shifted(by_place), causal(queries.shape[2], queries.device)
    else:
        by_place, seen = looked_up(by_place, distance), (distance >= 0)[:, None]
    scores = ((queries + content) @ keys.mT + by_place) * queries.shape[-1] ** -0.5
    # not -inf: a row that reads nothing would be NaN, and spread
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
    mixed = F.dropout(weights, dropout, dropout > 0) @ values
    return mixed if distance is None else mixed.masked_fill(~seen.any(-1, keepdim=True), 0)


def causal(length: int, device) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def shifted(by_place: torch.Tensor) -> torch.Tensor:
    """[..., T, N] by distance 0 to N - 1 = T - 1 -> [..., T, T] by key; what lies above the diagonal is nothing.

    Row i wants its distances backwards, ending at itself: one row's more in memory moves each row by one.
    """
    length = by_place.shape[-2]
    padded = F.pad(by_place.flip(-1), (1, 0)).flatten(-2)
    return padded[..., length:].unflatten(-1, (length, length))


def looked_up(by_place: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """[B, H, Q, N] by distance -> [B, H, Q, S] by key, for any distances [B, Q, S]."""
    index = distance.clamp(0, max(by_place.shape[-1] - 1, 0))[:, None].expand(-1, by_place.shape[1], -1, -1)
    return by_place.gather(-1, index)
