"""Who runs a layer: the record that a policy hands to the runtime."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Route:
    """One layer's decision. Shapes [B, T].

    run: bool, the token runs the layer. score: the router's, in float32 or better, None without a router.
    asks, runs, skips: what the updates of attention, feed-forward network and adapter are multiplied by when all rows
    are computed; they carry the gradient to the router. run_scale, skip_scale: the same for gathered rows, None for 1.
    """

    run: torch.Tensor
    score: torch.Tensor | None = None
    asks: torch.Tensor | None = None
    runs: torch.Tensor | None = None
    skips: torch.Tensor | None = None
    run_scale: torch.Tensor | None = None
    skip_scale: torch.Tensor | None = None

    @property
    def gate(self) -> torch.Tensor | None:
        """Router probability: sigmoid of the score."""
        return None if self.score is None else self.score.sigmoid()

    def weights(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """asks, runs and skips as [B, T, 1] in the dtype of the hidden states."""
        run = self.run.to(dtype)
        chosen = (
            run if self.asks is None else self.asks,
            run if self.runs is None else self.runs,
            1 - run if self.skips is None else self.skips,
        )
        return tuple(weight.to(dtype)[..., None] for weight in chosen)  # [B, T, 1]


def fixed(run: torch.Tensor) -> Route:
    """A route without a router: the branches are taken as they are."""
    return Route(run)


def released(run: torch.Tensor, score: torch.Tensor) -> Route:
    """Attention by the hard decision, feed-forward times g, adapter times 1 - g; the residual is outside the gate.

    Source: FlexiDepth (arXiv 2503.23798) as in its released checkpoint.
    """
    gate = score.sigmoid()
    hard = run.to(gate.dtype)
    return Route(run, score, hard, hard * gate, (1 - hard) * (1 - gate), run_scale=gate, skip_scale=1 - gate)


def hard_mask(run: torch.Tensor, score: torch.Tensor) -> Route:
    """Branches unscaled; the gradient goes straight through the hard decision to the gate."""
    if not torch.is_grad_enabled():
        return Route(run, score)
    gate = score.sigmoid()
    straight = run.to(gate.dtype) + gate - gate.detach()
    return Route(run, score, straight, straight, 1 - straight)


GATE_MODES = {"released": released, "hard_mask": hard_mask}
