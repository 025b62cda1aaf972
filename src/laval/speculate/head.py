"""A trained draft: one decoder layer over the dense model's last state and the token that followed it.

After EAGLE (Li et al. 2024, section 3): the state at t and the embedding of token t + 1 are joined, go through one
layer of the base's own kind, and become a guess of the state at t + 1, from which the base's own head, cut down to
frequent tokens, guesses token t + 2. Here the guess leaves through a final norm, as the dense state does.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from laval.blocks import Backbone

DRAFT = "draft.safetensors"
"""The file, beside the plug-in of its model."""


class DraftHead(nn.Module):
    """Weights of the draft. It starts as the base's last layer over the sum of both inputs.

    vocabulary: ids [Vd] that it may propose, int64. States [B, T, D] are those that the base's head reads.
    """

    def __init__(self, backbone: Backbone, vocabulary: torch.Tensor):
        super().__init__()
        decoder, width = backbone.decoder, backbone.config.hidden_size
        self.state_norm, self.token_norm = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.norm = deepcopy(decoder.norm)
        self.join = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            self.join.weight.copy_(torch.eye(width).repeat(1, 2))
        self.layer = deepcopy(backbone.blocks[-1].layer)
        self.layer.self_attn.layer_idx = 0  # of a cache of its own
        self.register_buffer("vocabulary", vocabulary)
        self.requires_grad_(True)

    def joined(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """What the layer reads: states and the next tokens' embeddings [..., D] -> [..., D]."""
        return self.join(torch.cat((self.state_norm(states), self.token_norm(embeddings)), dim=-1))

    def forward(self, backbone: Backbone, states, embeddings, mask=None) -> torch.Tensor:
        """Guessed states, one position on: states at t, embeddings of tokens t + 1 -> [B, T, D]; mask [B, T]."""
        x = self.joined(states, embeddings)
        context = backbone.contexts(x, mask)[-1]
        return self.norm(backbone.Block(self.layer)(x, context))
