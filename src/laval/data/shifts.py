"""Training rows as published: streams rolled anew each epoch, cut into chunks, and gone through in a new order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch


class CyclicShifts:
    """Rows of `length` inputs for each step, a pure function of tokens, seed and step: to resume is to name a step.

    The text is cut into `batch` streams, one for each row. In each epoch every stream starts at a place of its own,
    runs round, and is cut into chunks without overlap; a step takes the same chunk of each stream, in shuffled order
    (arXiv 2211.09761, and its code's data iterator as described). first: an id instead of the token ahead of what is
    predicted, as Hourglass begins every sequence with id 0. ValueError for sizes that do not fit.
    """

    def __init__(self, tokens, length: int, batch: int, seed: int = 0, first: int | None = None):
        if length < 1 or batch < 1:
            raise ValueError(f"length is {length}, batch {batch}; expected at least 1 each")
        self.tokens = np.asarray(tokens)
        self.length, self.batch, self.seed, self.first = length, batch, seed, first
        self.stream = len(self.tokens) // batch  # tokens of each
        self.steps = (self.stream - 1) // length  # of an epoch
        if self.steps < 1:
            raise ValueError(
                f"{len(self.tokens)} tokens in {batch} streams give no chunk of {length} and what follows it; "
                f"expected at least {batch * (length + 1)}: add text, or lower length or batch"
            )

    def at(self, step: int, rank: int = 0, ranks: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and what follows each, int64 [B, T]; of several processes each gets its share of the rows."""
        epoch, number = divmod(step, self.steps)
        starts, order = self.plan(epoch)
        places = starts[:, None] + order[number] * self.length + np.arange(self.length + 1)  # [B, T + 1]
        places = places % self.stream + np.arange(self.batch)[:, None] * self.stream
        rows = torch.from_numpy(self.tokens[places[rank::ranks]].astype(np.int64))
        ids, targets = rows[:, :-1].clone(), rows[:, 1:]
        if self.first is not None:
            ids[:, 0] = self.first
        return ids, targets

    def since(self, step: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every batch from a step on, without end."""
        while True:
            yield self.at(step)
            step += 1

    def plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each stream starts in an epoch [B], and the order of its chunks [steps]."""
        random = np.random.default_rng((self.seed, epoch))
        return random.integers(self.stream, size=self.batch), random.permutation(self.steps)
