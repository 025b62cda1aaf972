"""How well the segment ends of a model agree with given ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Agreement:
    """hits: ends found that are given. found, given: how many ends there are of each."""

    hits: int
    found: int
    given: int

    @property
    def precision(self) -> float | None:
        """Share of the ends found that are given; None where none was found."""
        return self.hits / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        """Share of the given ends that were found; None where none is given."""
        return self.hits / self.given if self.given else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of both; None where there is no end at all."""
        both = self.found + self.given
        return 2 * self.hits / both if both else None


def agreement(found, given, real=None) -> Agreement:
    """Of ends found with given ones, bools or 0 and 1 of one shape; real: False at places that do not count.

    ValueError for shapes that differ, or numbers that are neither 0 nor 1.
    """
    found, given = bits("found", found), bits("given", given)
    real = torch.ones_like(found) if real is None else bits("real", real)
    if not found.shape == given.shape == real.shape:
        raise ValueError(
            f"found has the shape {list(found.shape)}, given {list(given.shape)}, real {list(real.shape)}; expected "
            "the same places in each"
        )
    found, given = found & real, given & real
    return Agreement(int((found & given).sum()), int(found.sum()), int(given.sum()))


def bits(name: str, ends) -> torch.Tensor:
    ends = torch.as_tensor(ends)
    if not bool(((ends == 0) | (ends == 1)).all()):
        raise ValueError(
            f"{name} holds numbers that are neither 0 nor 1; expected whether a segment ends at each place"
        )
    return ends.bool()
