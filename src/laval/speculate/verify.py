"""Which proposed tokens stand: those that the dense model would have written itself.

Both rules see the scores of all rows of one pass, row i being read after i proposed tokens, and process each row with
the text in front of it, as `generate` does token by token.
"""

from __future__ import annotations

import torch

from laval.speculate.proposal import Proposal, Verdict

ROUNDINGS = 128
"""Two scores closer than this many eps of the greatest logit may change places in a pass over more rows. The greatest
change of the two best scores' distance that was seen is 14 (SmolLM2-135M, float32, 2 to 16 rows): 9 times that."""
EXACT = (torch.float32, torch.float64)


class Rule:
    """How tokens are chosen from logits. processors: those of `generate`, for the dense model and drafts alike."""

    def __init__(self, processors=()):
        self.processors = processors

    def scores(self, text: torch.Tensor, drafted, logits: torch.Tensor) -> torch.Tensor:
        """Processed scores [V] of logits [1, V] that follow text [1, N] and the drafted tokens."""
        return next(processed(self.processors, extended(text, drafted), logits, ()))


class Greedy(Rule):
    """The most likely token each time: what is accepted is what plain decoding writes.

    A pass over several rows rounds otherwise than several passes over one row, so where the two best scores are
    nearly equal the verdict stops with `tied`. Half precision has no room for that: its ties fall as they may.
    """

    def __init__(self, processors=(), dtype: torch.dtype = torch.float32):
        super().__init__(processors)
        self.bound = ROUNDINGS * torch.finfo(dtype).eps if dtype in EXACT else -1.0

    def settle(self, text: torch.Tensor, logits: torch.Tensor, proposal: Proposal, exact: bool = False) -> Verdict:
        """text [1, N] in front of the proposal, logits [k + 1, V]. exact: the logits are those of plain decoding."""
        tokens: list[int] = []
        for row, token, margin in self.ranked(text, logits, proposal, exact):
            if margin <= 0 and not exact:
                return Verdict(tuple(tokens), len(tokens), tied=True)
            tokens.append(token)
            if row == len(proposal) or token != proposal.tokens[row]:
                break
        return Verdict(tuple(tokens), len(tokens) - 1)

    def ranked(self, text: torch.Tensor, logits: torch.Tensor, proposal: Proposal, exact: bool):
        """Row by row: its number, the best token, and by how much it leads beyond what rounding can do."""
        if self.processors:
            scores = torch.stack(list(processed(self.processors, text, logits, proposal.tokens)))
        else:
            scores = logits.float()
        best = scores.argmax(-1, keepdim=True)  # the first of equals, as in `generate`
        if exact:
            yield from ((row, token, 0.0) for row, token in enumerate(best[:, 0].tolist()))
            return
        first = scores.gather(-1, best)
        second = scores.scatter(-1, best, -torch.inf).amax(-1, keepdim=True)
        lead = first - second - self.bound * logits.abs().amax(-1, keepdim=True)
        yield from zip(range(len(scores)), best[:, 0].tolist(), lead[:, 0].tolist(), strict=True)

    def draw(self, scores: torch.Tensor) -> tuple[int, None]:
        """A drafted token from scores [V]; it needs no distribution."""
        return int(scores.argmax()), None


class Sampling(Rule):
    """Draws from the processed distribution, exactly, whatever was proposed.

    A token that was drawn from q is kept with probability min(1, p/q), else replaced by one from the rest of p
    (Leviathan et al. 2023, algorithm 1). A token that was not drawn is compared with a draw from p: then the same
    random numbers are used up as without a draft, and a seed gives the same text.
    """

    def settle(self, text: torch.Tensor, logits: torch.Tensor, proposal: Proposal, exact: bool = False) -> Verdict:
        """text [1, N] in front of the proposal, logits [k + 1, V]."""
        tokens: list[int] = []
        for row, scores in enumerate(processed(self.processors, text, logits, proposal.tokens)):
            drafted = proposal.tokens[row] if row < len(proposal) else None
            drawn_from = None if drafted is None or proposal.probabilities is None else proposal.probabilities[row]
            tokens.append(settle_one(scores.softmax(-1), drafted, drawn_from))
            if tokens[-1] != drafted:
                break
        return Verdict(tuple(tokens), len(tokens) - 1)

    def draw(self, scores: torch.Tensor) -> tuple[int, torch.Tensor]:
        """A drafted token from scores [V], and the distribution [V] it was drawn from."""
        p = scores.softmax(-1)
        return draw(p), p


def settle_one(p: torch.Tensor, drafted: int | None, q: torch.Tensor | None = None) -> int:
    """A token distributed as p [V], equal to `drafted` as often as can be when that was drawn from q [V]."""
    if drafted is None or q is None:
        return draw(p)
    if torch.rand((), device=p.device) * q[drafted] < p[drafted]:
        return drafted
    rest = (p - q).clamp(min=0)
    return draw(rest if rest.sum() > 0 else p)  # p = q up to rounding leaves no rest


def draw(weights: torch.Tensor) -> int:
    """An index, with probability proportional to weights [V]."""
    return int(torch.multinomial(weights[None], num_samples=1))


def processed(processors, text: torch.Tensor, logits: torch.Tensor, drafted: tuple[int, ...]):
    """Row by row, scores [V] of logits [R, V] under the processors, each after text [1, N] and tokens before it."""
    whole = extended(text, drafted)
    for row in range(len(logits)):
        scores = logits[row : row + 1].to(copy=True, dtype=torch.float32)  # processors may write in place
        for processor in processors:
            scores = processor(whole[:, : text.shape[1] + row], scores)
        yield scores[0]


def extended(text: torch.Tensor, tokens) -> torch.Tensor:
    """text [1, N] and more tokens behind it."""
    return torch.cat([text, text.new_tensor([tokens])], dim=1) if len(tokens) else text
