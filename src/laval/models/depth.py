"""Where on its budget curve a model stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laval.models.thresholds import logit, taus_of
from laval.skip import DropLayers, RandomRoutes


def known_depth(model) -> float | None:
    """The mean depth a model is set to: exact for fixed methods, else read off its budget curve; None off it."""
    layers, routed = model.config.text_config.num_hidden_layers, len(model.policy.layers)
    method = model.config.build_method()
    if isinstance(method, DropLayers):
        return float(layers - routed)
    if isinstance(method, RandomRoutes):
        return layers - routed * (1 - method.rate)
    return depth_on_curve(model.config.curve, taus_of(model.policy))


def depth_on_curve(curve: list[dict], taus: list[float]) -> float | None:
    """Where `taus` lie on a budget curve; `set_depth` moves along it in straight lines of scores."""
    points = sorted((_mean_score(point["taus"]), point["depth"]) for point in curve)
    if not points or not points[0][0] - 1e-6 <= _mean_score(taus) <= points[-1][0] + 1e-6:
        return None
    return float(np.interp(_mean_score(taus), *zip(*points, strict=True)))


def _mean_score(taus: Sequence[float]) -> float:
    return sum(map(logit, taus)) / len(taus)
