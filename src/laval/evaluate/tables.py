"""Depth curves for people: a markdown table and a figure per text."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from laval.report.figures import curve_svg


def curve_table(records: list[dict]) -> str:
    """Markdown: for each text a row per depth and a column per method, perplexity relative to dense (95 % interval).

    Random routes show the mean over seeds and, in brackets, the least and the greatest.
    """
    texts = dict.fromkeys(record["text"] for record in records)
    return "\n\n".join(text_table(name, [r for r in records if r["text"] == name]) for name in texts)


def text_table(name: str, records: list[dict]) -> str:
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for record in records:
        if record["method"] != "dense":
            cells[record["wanted"], record["method"]].append(record)
    methods = list(dict.fromkeys(method for _, method in cells))
    known = [f"{record['perplexity']:.2f}" for record in records if record["method"] == "dense"]
    lines = [f"**{name}**" + (f", dense perplexity {known[0]}" if known else ""), ""]
    lines += ["| depth | " + " | ".join(methods) + " |", "|---:|" + "---:|" * len(methods)]
    for depth in sorted({depth for depth, _ in cells}, reverse=True):
        lines.append(f"| {depth:g} | " + " | ".join(cell(cells.get((depth, method))) for method in methods) + " |")
    return "\n".join(lines)


def cell(records: list[dict] | None) -> str:
    if not records:
        return ""
    ratios = [record["ratio"] for record in records]
    low, high = (min(ratios), max(ratios)) if len(records) > 1 else (records[0]["low"], records[0]["high"])
    return f"{fmean(ratios):.3f} ({low:.3f} to {high:.3f})"


def curve_figure(records: list[dict], text: str, y_max: float | None = None) -> str:
    """Inline SVG of one text's curves, random routes as the mean over seeds; dense is the line at 1."""
    points: dict[tuple, list[dict]] = defaultdict(list)
    for record in records:
        if record["text"] == text and record["method"] != "dense":
            points[record["method"], record["wanted"]].append(record)
    means = [
        {"method": method, **{key: fmean(record[key] for record in group) for key in ("depth", "ratio")}}
        for (method, _), group in points.items()
    ]
    return curve_svg(means, y_max=y_max, title=text)
