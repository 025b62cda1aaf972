"""The shorten factor: what it is in a batch, and the threshold that gives a wanted one."""

from __future__ import annotations

import torch

from laval.shorten.commit import Commits, Rule


def shorten_factor(commits: Commits) -> float:
    """Rows per segment over a batch (infinite where nothing commits)."""
    total, ended = int(commits.real.sum()), int(commits.bits.sum())
    return total / ended if ended else float("inf")


@torch.no_grad()
def threshold_for(rule: Rule, commits: Commits, factor: float) -> float:
    """The threshold at which a learned rule would commit at one row in `factor` of these.

    ValueError for a rule without threshold, or a factor out of range.
    """
    measured = rule.cuts(commits)
    if measured is None:
        raise ValueError(f"{type(rule).__name__} has no threshold to set; expected a learned rule")
    measured = measured[commits.real].double().sort(descending=True).values
    if not 1 < factor <= len(measured):
        raise ValueError(f"factor is {factor:g}; expected above 1 and at most {len(measured)}, the rows measured on")
    wanted = max(round(len(measured) / factor), 1)
    return float((measured[wanted - 1] + measured[min(wanted, len(measured) - 1)]) / 2)
