"""Running a model for evaluation: what its last layer says, which layers ran, and nats per token in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from laval.blocks import KNOWN_FAMILIES, Backbone, backbone_of
from laval.evaluate.text import Batch
from laval.models import AdaptiveForCausalLM, recording

ROWS = 256  # logits computed at once: 50 MB for a vocabulary of 49152


@dataclass(frozen=True)
class Pass:
    """One forward: last states [B, T, ...] that logits are made from; run bool and gate (or NaN), both [L, B, T]."""

    states: torch.Tensor
    run: torch.Tensor
    gate: torch.Tensor


class Reader:
    """Any causal language model: its forward makes all logits at once, and every layer runs."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.layers = model.config.get_text_config().num_hidden_layers

    def forward(self, batch: Batch) -> Pass:
        """Run a batch; pads are in the Pass too, `batch.valid` tells them."""
        with noting(self.model, self.layers, batch) as notes:
            states = self.states(batch.to(self.model.device))
        return Pass(states, *notes)

    def states(self, batch: Batch) -> torch.Tensor:
        return self.model(**batch.arguments).logits

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits of states [R, ...], [R, V]."""
        return states

    def nats(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Minus log likelihood of each scored token in text order, [scored], float64 on the CPU."""
        scored = batch.scored.flatten().to(states.device)
        rows = states.flatten(0, 1)[scored]  # [R, ...]
        targets = batch.targets.to(states.device).flatten()[scored]
        pieces = zip(rows.split(ROWS), targets.split(ROWS), strict=True)
        found = [F.cross_entropy(wide(self.logits(part)), target, reduction="none") for part, target in pieces]
        return torch.cat(found).double().cpu()


class BackboneReader(Reader):
    """A known family: the forward stops before the vocabulary, and logits are made piece by piece."""

    def __init__(self, model: PreTrainedModel, backbone: Backbone):
        super().__init__(model)
        self.backbone = backbone

    def states(self, batch: Batch) -> torch.Tensor:
        caught = []
        # the model's own forward, whatever its method and runtime, passes its last states to the final norm
        hook = self.backbone.decoder.norm.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
        try:
            self.model(**batch.arguments, logits_to_keep=1)
        finally:
            hook.remove()
        return caught[-1]  # [B, T, D]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self.backbone.head(states[None])[0]


def reader_of(model: PreTrainedModel) -> Reader:
    """The Reader that suits a model."""
    if isinstance(model, AdaptiveForCausalLM):
        return BackboneReader(model, model.backbone)
    if model.config.get_text_config().model_type in KNOWN_FAMILIES:
        return BackboneReader(model, backbone_of(model))
    return Reader(model)


@contextmanager
def noting(model, layers: int, batch: Batch) -> Iterator[list[torch.Tensor]]:
    """Inside goes one forward; afterwards the list holds its run and gate, [L, B, T] each."""
    notes: list[torch.Tensor] = []
    if isinstance(model, AdaptiveForCausalLM):
        with recording(model) as record:
            yield notes
        notes += [record.runs[-1], record.gates[-1]]
    else:
        yield notes
        run = torch.ones(layers, *batch.ids.shape, dtype=torch.bool)
        notes += [run, torch.full(run.shape, torch.nan)]


def wide(x: torch.Tensor) -> torch.Tensor:
    """x in float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
