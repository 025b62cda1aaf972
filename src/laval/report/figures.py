"""Curves for cards and pages, drawn by matplotlib as SVG that sits in a page and follows its theme."""

import io
import re

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito, colour-blind safe
MARKERS = "osD^vP"
STYLES = ("-", "--", "-.", ":")
INK = "#010203"  # stands for the text colour of the page around


def curve_svg(
    points: list[dict],
    x: str = "depth",
    y: str = "ratio",
    by: str = "method",
    x_label: str = "mean depth (layers run per token)",
    y_label: str = "perplexity relative to dense",
    y_max: float | None = None,
    title: str | None = None,
) -> str:
    """An inline SVG: one line per method, quality against mean depth.

    points: records with the keys named by x, y and by. y_max cuts the axis, for controls that are far off.
    Raises ValueError for no points, or a record without one of the keys. Needs matplotlib.
    """
    groups = _grouped(points, x, y, by)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "laval", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for i, (name, line) in enumerate(groups.items()):
            axes.plot(*zip(*sorted(line), strict=True), label=name, lw=1.8, ms=5, **_look(i))
        axes.axhline(1, color=INK, lw=0.8, alpha=0.4)
        axes.set(xlabel=x_label, ylabel=y_label, title=title or "")
        if y_max is not None:
            axes.set_ylim(top=y_max)
        _calm(axes)
        return _inline(figure)


def budget_svg(points: list[dict], dense_perplexity: float) -> str:
    """An SVG of a budget curve: perplexity against depth beside dense, and under it the ideal speed-up there.

    points: records with depth, perplexity, decode and prefill: times faster than dense, on paper.
    Raises ValueError for no points. Needs matplotlib.
    """
    if not points:
        raise ValueError("points is empty; expected at least one point of a budget curve")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    points = sorted(points, key=lambda point: point["depth"])
    depths = [point["depth"] for point in points]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "laval", "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(6.4, 5.2), layout="constrained")
        quality, speed = figure.subplots(2, sharex=True)
        quality.plot(depths, [point["perplexity"] for point in points], label="skipping", lw=1.8, ms=5, **_look(0))
        quality.axhline(dense_perplexity, color=INK, lw=0.8, alpha=0.6, ls="--", label="dense")
        quality.set(ylabel="perplexity")
        for i, phase in enumerate(("decode", "prefill"), 1):
            speed.plot(depths, [point[phase] for point in points], label=f"ideal, {phase}", lw=1.8, ms=5, **_look(i))
        speed.axhline(1, color=INK, lw=0.8, alpha=0.6, ls="--", label="dense")
        speed.set(xlabel="mean depth (layers run per token)", ylabel="times faster than dense")
        for axes in (quality, speed):
            _calm(axes)
        return _inline(figure)


def picture(svg: str) -> str:
    """An inline SVG as a file of its own: on a page that is light, whatever the viewer's theme."""
    return svg.replace("<svg ", '<svg style="background:#fff;color:#111" ', 1)


def _grouped(points: list[dict], x: str, y: str, by: str) -> dict[str, list[tuple[float, float]]]:
    if not points:
        raise ValueError("points is empty; expected at least one record to draw")
    groups: dict[str, list[tuple[float, float]]] = {}
    for i, point in enumerate(points):
        absent = [key for key in (x, y, by) if key not in point]
        if absent:
            raise ValueError(f"points[{i}] has no {absent[0]!r}; expected the keys {x!r}, {y!r} and {by!r}")
        groups.setdefault(str(point[by]), []).append((float(point[x]), float(point[y])))
    return groups


def _look(i: int) -> dict:
    return {"color": COLORS[i % 6], "marker": MARKERS[i % 6], "ls": STYLES[i % 4]}


def _calm(axes):
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=INK, alpha=0.4)
    axes.grid(color=INK, alpha=0.08)
    axes.tick_params(color=INK, labelcolor=INK, length=0)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)
    axes.legend(frameon=False, labelcolor=INK)


def _inline(figure) -> str:
    """The bare <svg> element: no prolog, no metadata, text in the colour of its surroundings."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace(INK, "currentColor").replace("<svg ", '<svg role="img" ', 1)
