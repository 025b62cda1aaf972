"""The dense model's last hidden states of a text, for drafts that go on from them."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn


class States:
    """What the head reads, after the final norm, of the tokens `first` to `length` of a text.

    `first` is above 0 where a cache was handed in that had read the start before.
    """

    def __init__(self):
        self.first = self.length = 0
        self.rows: torch.Tensor | None = None  # room for more than there are

    def since(self, place: int) -> torch.Tensor:
        """States [length - place, D] of the tokens from `place` on; ValueError where they were never seen."""
        if place < self.first:
            raise ValueError(f"place is {place}; expected {self.first} or later, where this text was first read")
        if self.rows is None:
            raise ValueError(f"place is {place}, but nothing has been read; expected a prompt first")
        return self.rows[place - self.first : self.length - self.first]

    def start(self, first: int) -> None:
        """Begin again with the token at `first`."""
        self.first = self.length = first

    def forget(self, count: int) -> None:
        self.length -= count

    def add(self, states: torch.Tensor) -> None:
        """States [T, D] of the next tokens."""
        begin, self.length = self.length, self.length + len(states)
        if self.rows is None or self.length - self.first > len(self.rows):
            self.make_room(states, begin)
        self.rows[begin - self.first : self.length - self.first] = states

    def make_room(self, like: torch.Tensor, kept: int) -> None:
        rows = torch.empty(2 * (self.length - self.first), like.shape[-1], dtype=like.dtype, device=like.device)
        if self.rows is not None:
            rows[: kept - self.first] = self.rows[: kept - self.first]
        self.rows = rows

    @contextmanager
    def hearing(self, norm: nn.Module):
        """Inside, what `norm` returns, [1, T, D], is added."""
        handle = norm.register_forward_hook(lambda module, inputs, output: self.add(output[0]))
        try:
            yield
        finally:
            handle.remove()
