"""Quality at a measured depth: perplexity, thresholds for a budget, controls, and the comparison of them all."""

from __future__ import annotations

from laval.evaluate.budget import calibrate, depth_at, match_depth
from laval.evaluate.compare import depth_curve
from laval.evaluate.controls import (
    block_influence,
    greedy_layers,
    random_control,
    random_routes,
    rate_for,
    shortgpt_layers,
    with_policy,
)
from laval.evaluate.perplexity import Interval, TextScore, per_token, perplexity, ratio_interval
from laval.evaluate.tables import curve_figure, curve_table
from laval.evaluate.text import Batch, Text, read_text, text_batches, windows

__all__ = [
    "Batch",
    "Interval",
    "Text",
    "TextScore",
    "block_influence",
    "calibrate",
    "curve_figure",
    "curve_table",
    "depth_at",
    "depth_curve",
    "greedy_layers",
    "match_depth",
    "per_token",
    "perplexity",
    "random_control",
    "random_routes",
    "rate_for",
    "ratio_interval",
    "read_text",
    "shortgpt_layers",
    "text_batches",
    "windows",
    "with_policy",
]
