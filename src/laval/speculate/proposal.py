"""What drafts hand over, and what the dense model made of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Proposal:
    """Tokens that may come next. sources: which draft each comes from.

    probabilities [k, V]: the distributions that the tokens were drawn from; None for a draft that does not draw.
    """

    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    probabilities: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Verdict:
    """The tokens that the dense model puts after a text: `accepted` proposed ones, then one of its own.

    tied: the next token after these cannot be told from rounded logits (greedy only); then `tokens` are all proposed
    ones, and the model's own is still to be found.
    """

    tokens: tuple[int, ...]
    accepted: int
    tied: bool = False


NOTHING = Proposal()


def source_of(draft: str, place: int) -> str:
    """What the token at `place`, from 1 on, of a draft by the model itself is counted as."""
    return f"{draft} {min(place, 4)}"


def source_at(draft: str, sure: float) -> str:
    """What a token that a draft was so sure of, from 0 to 1, is counted as."""
    return f"{draft} ~{min(int(10 * sure), 9)}"


def chance_of(source: str) -> float:
    """What is assumed of such tokens before any was tried: that the draft is as sure as it should be."""
    return (int(source[-1]) + 0.5) / 10
