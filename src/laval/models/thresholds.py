"""Thresholds as scores, and as the probabilities (taus) they are saved as."""

from __future__ import annotations

import math

from laval.skip import SkipPolicy

LOWEST, HIGHEST = -700.0, 36.0  # beyond these scores tau would be 0 or 1
ULPS = 4  # how far the logit of the logistic function may land from where it started


def logit(tau: float) -> float:
    """The score that g > tau compares with."""
    return math.log(tau / (1 - tau))


def tau_of(threshold: float) -> float:
    """The tau that `threshold` is the logit of, to the last bit if there is one; the nearest for an infinite one."""
    near = 1 / (1 + math.exp(-min(max(threshold, LOWEST), HIGHEST)))
    candidates = [near]
    for side in (0.0, 1.0):
        tau = near
        for _ in range(ULPS):
            tau = math.nextafter(tau, side)
            candidates.append(tau)
    return min((tau for tau in candidates if 0 < tau < 1), key=lambda tau: abs(logit(tau) - threshold))


def taus_of(policy: SkipPolicy) -> list[float]:
    """One tau per routed layer, from which `set_thresholds` restores the policy; none without thresholds."""
    thresholds = getattr(policy, "thresholds", {})
    return [tau_of(thresholds[layer]) for layer in policy.layers] if thresholds else []
