"""Losses as pure functions, in float32 or better whatever the model computes in."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Mean nats per token of ids [B, T] under logits [B, T, V]."""
    return F.cross_entropy(wide(logits[:, :-1].flatten(0, 1)), ids[:, 1:].flatten())


def distillation_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Mean KL(teacher || student) in nats per token; logits [B, T, V]."""
    known, guessed = (wide(logits).flatten(0, -2).log_softmax(-1) for logits in (teacher, student))
    return F.kl_div(guessed, known, log_target=True, reduction="batchmean")


def depth_penalty(gates: torch.Tensor) -> torch.Tensor:
    """Mean over tokens of the square of the gates summed over layers; gates [Lr, B, T].

    Source: FlexiDepth (arXiv 2503.23798), L_skip: the square of the sum, not the sum of squares.
    """
    return gates.sum(0).square().mean()


def relative_error(update: torch.Tensor, wanted: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Squared error of a residual update, relative to the state after the layer: [..., D] -> [...], 0 is perfect.

    What follows a layer sees its state through a root-mean-square norm, hence relative.
    """
    return wide(update - wanted).square().sum(-1) / wide(after).square().sum(-1)
