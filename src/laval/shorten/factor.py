"""The shorten factor: what it is in a batch, and the threshold that gives a wanted one."""

from __future__ import annotations

import torch

from laval.shorten.commit import Commits, Rule


def shorten_factor(commits: Commits) -> float:
    """Rows per segment over a batch (infinite where nothing commits)."""
    total, ended = int(commits.real.sum()), int(commits.bits.sum())
    return total / ended if ended else float("inf")


def threshold_for(commits: Commits, factor: float) -> float:
    """The threshold at which one row in `factor` of these would commit. ValueError for a factor out of range."""
    if commits.chance is None:
        raise ValueError("this rule has no chances to set a threshold on; expected a learned one")
    chances = commits.chance[commits.real].double().sort(descending=True).values
    if not 1 < factor <= len(chances):
        raise ValueError(f"factor is {factor:g}; expected above 1 and at most {len(chances)}, the tokens measured on")
    wanted = max(round(len(chances) / factor), 1)
    return float((chances[wanted - 1] + chances[min(wanted, len(chances) - 1)]) / 2)


@torch.no_grad()
def set_threshold(rule: Rule, commits: Commits, factor: float) -> float:
    """Move a learned rule's threshold to where it shortens such a text by `factor`; the threshold."""
    rule.threshold = threshold_for(commits, factor)
    return rule.threshold
