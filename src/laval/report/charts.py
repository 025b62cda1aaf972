"""The drawings of the page, as inline SVG: layers by tokens, histogram of depth, depth by kind of token."""

from collections import Counter
from html import escape

from laval.report.glyphs import label
from laval.report.scale import Scale
from laval.report.trace import Row

BAND = 80  # tokens in one strip of the grid
BANDS = 3
CELL = 11
LEFT, TOP, FOOT = 30, 6, 64


def told(row: Row, t: int, layers: int) -> str:
    """What the page says about token t: '27 of 30 layers, skipped 5 9–11'."""
    return f"{row.depth[t]} of {layers} layers" + (f", skipped {ranges(row.skipped[t])}" if row.skipped[t] else "")


def ranges(layers: list[int]) -> str:
    """Sorted layer numbers in short: [5, 9, 10, 11] is '5 9–11'."""
    groups: list[list[int]] = []
    for layer in layers:
        if groups and layer == groups[-1][1] + 1:
            groups[-1][1] = layer
        else:
            groups.append([layer, layer])
    return " ".join(str(a) if a == b else f"{a} {b}" if b == a + 1 else f"{a}–{b}" for a, b in groups)


def grid(row: Row, routed: list[bool]) -> str:
    """Layers down, tokens across, for the first BAND * BANDS tokens; filled where the layer ran."""
    shown = min(len(row.pieces), BAND * BANDS)
    return "".join(_band(row, routed, start, min(start + BAND, shown)) for start in range(0, shown, BAND))


def _band(row: Row, routed: list[bool], start: int, stop: int) -> str:
    height = max(3, min(8, 260 // max(1, len(routed))))
    bottom = TOP + height * len(routed)
    skipped = [set(layers) for layers in row.skipped[start:stop]]
    strata = "".join(
        f'<path class="{"ran" if free else "always"}" '
        f'd="{_stratum(layer, skipped, TOP + layer * height, height - 1)}"/>'
        for layer, free in enumerate(routed)
    )
    columns = "".join(_column(row, t, len(routed), LEFT + (t - start) * CELL, bottom) for t in range(start, stop))
    floor = f'<rect class="bed" x="{LEFT}" y="{TOP}" width="{(stop - start) * CELL}" height="{bottom - TOP}"/>'
    name = f"Layers run by tokens {start} to {stop - 1}"
    box = f"0 0 {LEFT + BAND * CELL + 4} {bottom + FOOT}"
    drawn = floor + strata + _ticks(len(routed), height) + columns
    return f'<svg viewBox="{box}" role="img" aria-label="{name}">{drawn}</svg>'


def _stratum(layer: int, skipped: list[set[int]], y: int, height: int) -> str:
    """One layer of a band as a path: a rectangle for each run of tokens that ran it."""
    path, begun = [], None
    for t in range(len(skipped) + 1):
        ran = t < len(skipped) and layer not in skipped[t]
        if ran and begun is None:
            begun = t
        elif not ran and begun is not None:
            width = (t - begun) * CELL
            path.append(f"M{LEFT + begun * CELL} {y}h{width}v{height}h-{width}z")
            begun = None
    return "".join(path)


def _ticks(layers: int, height: int) -> str:
    every = next(step for step in (1, 5, 10, 20, 50, 1000) if step * height >= 24)
    return "".join(
        f'<text class="tick" x="{LEFT - 6}" y="{TOP + (layer + 0.5) * height + 3:g}" text-anchor="end">{layer}</text>'
        for layer in range(0, layers, every)
    )


def _column(row: Row, t: int, layers: int, x: int, bottom: int) -> str:
    name = escape(label(row.pieces[t]))
    return (
        f"<g><title>{name}: {told(row, t, layers)}</title>"
        f'<rect class="hit" x="{x}" y="{TOP}" width="{CELL}" height="{bottom - TOP + FOOT - 4}"/>'
        f'<text class="word" transform="translate({x + CELL / 2 + 3:g} {bottom + 6})rotate(-90)" text-anchor="end">'
        f"{name}</text></g>"
    )


def histogram(depths: list[int], scale: Scale) -> str:
    """Share of tokens at each depth, one column per depth."""
    counts = Counter(depths)
    top = max(counts.values(), default=1)
    span = range(scale.floor, scale.layers + 1)
    step = 420 / len(span)
    columns = "".join(_bin(i, depth, counts[depth], len(depths), top, step) for i, depth in enumerate(span))
    return f'<svg viewBox="-6 0 432 172" role="img" aria-label="How many tokens took each depth">{columns}</svg>'


def _bin(i: int, depth: int, count: int, total: int, top: int, step: float) -> str:
    share = count / total if total else 0
    height, x = 118 * count / top, i * step
    every = max(1, round(26 / step))
    axis = (
        f'<text class="tick" x="{x + step / 2:.1f}" y="160" text-anchor="middle">{depth}</text>'
        if i % every == 0
        else ""
    )
    percent = f"{100 * share:.0f} %" if share >= 0.005 else ""
    number = f'<text class="value" x="{x + step / 2:.1f}" y="{136 - height:.1f}" text-anchor="middle">{percent}</text>'
    return (
        f'<g><title>{count} tokens ran {depth} layers</title><rect class="bin d{depth}" x="{x + 1.5:.1f}" '
        f'y="{142 - height:.1f}" width="{step - 3:.1f}" height="{height:.1f}" rx="2"/>'
        f"{number if step >= 26 else ''}{axis}</g>"
    )


def kinds(found: dict[str, tuple[int, float]], mean: float, scale: Scale) -> str:
    """Mean depth of each kind of token as a dot on one axis; the line is the mean over all tokens."""
    left, right, pitch = 150, 400, 26
    bottom = pitch * len(found) + 6

    def place(depth: float) -> float:
        share = (depth - scale.floor) / max(1, scale.layers - scale.floor)
        return left + share * (right - left)

    lines = "".join(_dot(i * pitch + 16, kind, *found[kind], place, left, right) for i, kind in enumerate(found))
    ends = "".join(
        f'<text class="tick" x="{place(depth):.1f}" y="{bottom + 14}" text-anchor="middle">{depth}</text>'
        for depth in (scale.floor, scale.layers)
    )
    line = f'<path class="mean" d="M{place(mean):.1f} 2V{bottom}"/>' if found else ""
    name = "Mean depth of each kind of token"
    return f'<svg viewBox="0 0 420 {bottom + 22}" role="img" aria-label="{name}">{line}{lines}{ends}</svg>'


def _dot(y: int, kind: str, count: int, mean: float, place, left: int, right: int) -> str:
    x = place(mean)
    number_x, anchor = (x + 10, "start") if x < right - 40 else (x - 10, "end")
    return (
        f"<g><title>{kind}: {count} tokens, mean depth {mean:.2f}</title>"
        f'<path class="rail" d="M{left} {y}H{right}"/>'
        f'<text class="name" x="{left - 14}" y="{y + 4}" text-anchor="end">{kind}</text>'
        f'<circle class="dot" cx="{x:.1f}" cy="{y}" r="5"/>'
        f'<text class="value" x="{number_x:.1f}" y="{y - 5}" text-anchor="{anchor}">{mean:.1f}</text></g>'
    )
