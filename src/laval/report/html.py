"""A trace as one self-contained page: no network, no framework, complete without JavaScript."""

import math
from html import escape
from importlib.resources import files

from laval.report import charts
from laval.report.glyphs import depth_by_kind, shown
from laval.report.scale import DARK, LIGHT, Scale
from laval.report.trace import Row, Trace

MARK = (
    '<svg class="mark" viewBox="0 0 48 28" aria-hidden="true">'
    '<path d="M1 1C15 1 16 10 24 10S33 1 47 1V27C33 27 32 18 24 18S15 27 1 27Z"/></svg>'
)
CAVEAT = (
    "A token’s depth counts the layers that ran at its position, while the model worked out the token after it. "
    "These are counts of layers, not of seconds: a skipped layer may still compute keys, values and its small adapter."
)


def page(trace: Trace) -> str:
    """The whole document as a string."""
    rows = trace.rows()
    depths = [depth for row in rows for depth in row.depth]
    scale = Scale.of(depths, trace.layers)
    body = [
        _head(trace, depths),
        _legend(scale, any(row.new_from is not None for row in rows), trace.segments is not None),
        *(_text(i, row, trace, len(rows)) for i, row in enumerate(rows)),
        _analysis(trace, depths, scale) if depths else "",
        _facts(trace),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Depth map: {_plain(trace.mean_depth)} of {trace.layers} layers per token</title>\n"
        f"<style>\n{_asset('page.css')}{_colors(scale)}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (files("laval.report") / name).read_text(encoding="utf-8")


def _colors(scale: Scale) -> str:
    def rules(stops):
        span = range(scale.floor, scale.layers + 1)
        return "".join(f".d{d}{{--b:{scale.color(d, stops)}}}" for d in span)

    return f"{rules(LIGHT)}\n@media screen and (prefers-color-scheme:dark){{{rules(DARK)}}}\n"


def _plain(value: float, form: str = ".1f") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}"


def _data(name: str, value: float, form: str = ".1f") -> str:
    """A number as people read it, with the exact one in `value` for programs."""
    exact = "" if math.isnan(value) else repr(value)
    return f'<data data-name="{name}" value="{exact}">{_plain(value, form)}</data>'


def _head(trace: Trace, depths: list[int]) -> str:
    layers = _data("layers", trace.layers, ".0f")
    return (
        f'<header><p class="brand">{MARK}laval · depth map</p>\n'
        f"<h1>{_data('mean-depth', trace.mean_depth)} <small>of {layers} layers per token</small></h1>\n"
        f'<p class="lead">{_lead(trace, depths)}</p></header>'
    )


def _lead(trace: Trace, depths: list[int]) -> str:
    if not depths:
        return "There is no token in this trace, at most padding."
    texts = f" in {len(trace.tokens)} texts" if len(trace.tokens) > 1 else ""
    skipped, count = _data("skipped-percent", 100 * trace.skipped_share), _data("tokens", trace.count, ".0f")
    return (
        f"<strong>{skipped}&nbsp;%</strong> of layer computations were skipped over {count} "
        f"token{'s' if trace.count > 1 else ''}{texts}. "
        f"The shallowest token ran {min(depths)} layers, the deepest {max(depths)}."
    )


def _legend(scale: Scale, generated: bool, segments: bool) -> str:
    steps = "".join(f'<i class="d{d}">{d}</i>' for d in range(scale.floor, scale.layers + 1))
    new = '<span><b class="new"></b> generated text begins</span>' if generated else ""
    segment = '<span><b class="cut"></b> a segment begins</span>' if segments else ""
    return (
        f'<div class="legend" role="note"><span>fewer layers</span><span class="steps">{steps}</span>'
        f"<span>all layers</span>{new}{segment}</div>"
    )


def _text(i: int, row: Row, trace: Trace, rows: int) -> str:
    title = f"<h2>Text {i + 1}</h2>" if rows > 1 else "<h2>The text</h2>"
    told = (
        f"{_data('row-tokens', len(row.pieces), '.0f')} tokens, mean depth {_data('row-mean-depth', row.mean_depth)}"
    )
    if row.new_from is not None and 0 < row.new_from < len(row.pieces):
        told += _halves(row)
    spans = "".join(_token(row, t, trace.layers) for t in range(len(row.pieces)))
    text = (
        f'<p class="map" dir="auto">{spans}</p>'
        if spans
        else '<p class="none">No tokens in this text, only padding.</p>'
    )
    head = f'<div class="title">{title}<p>{told}</p></div>'
    return f'<section class="text">{head}\n{text}\n{_grid(row, trace, i == 0)}</section>'


def _halves(row: Row) -> str:
    given, new = row.depth[: row.new_from], row.depth[row.new_from :]
    return f" · prompt {sum(given) / len(given):.1f} · generated {sum(new) / len(new):.1f}"


def _token(row: Row, t: int, layers: int) -> str:
    piece = row.pieces[t]
    new = '<b class="new"></b>' if t == row.new_from else ""
    cut = " cut" if row.starts[t] else ""
    names = f'"d{row.depth[t]}{cut}{"" if piece else " part"}"' if cut or not piece else f"d{row.depth[t]}"
    text = (
        escape(shown(piece), quote=False)
        .replace("\n", '<b class="line"></b>\n')
        .replace("\t", '<b class="tab"></b>\t')
    )
    return f'{new}<span class={names} title="{charts.told(row, t, layers)}">{text}</span>'


def _grid(row: Row, trace: Trace, opened: bool) -> str:
    if not row.pieces or not trace.layers:
        return ""
    limit = charts.BAND * charts.BANDS
    some = f"the first {limit} tokens" if len(row.pieces) > limit else "every token"
    routed = trace.routed.tolist()
    always = '<span><i class="key always"></i>ran, has no router</span>' if not all(routed) else ""
    return (
        f'<details class="grid"{" open" if opened else ""}>'
        f"<summary>Layers by tokens <small>{some}; layers down, text across</small></summary>"
        f'<div class="legend"><span><i class="key ran"></i>ran</span>{always}'
        '<span><i class="key bed"></i>skipped</span></div>\n'
        f'<div class="wide">{charts.grid(row, routed)}</div></details>'
    )


def _analysis(trace: Trace, depths: list[int], scale: Scale) -> str:
    kinds = charts.kinds(depth_by_kind(trace), trace.mean_depth, scale)
    return (
        '<section class="split"><div>'
        + _panel("How often each layer ran", "Share of tokens; pads never count.", _layers(trace))
        + "</div>\n<div>"
        + _panel("How deep tokens went", "Share of tokens at each depth.", charts.histogram(depths, scale))
        + _panel("Which tokens go deep", "Mean depth by kind of token; the line is the mean of all.", kinds)
        + "</div></section>"
    )


def _panel(title: str, hint: str, drawing: str) -> str:
    return f'<h2>{title}</h2>\n<p class="hint">{hint}</p>{drawing}\n'


def _layers(trace: Trace) -> str:
    lines = "".join(
        f'<tr{"" if free else " class=fixed"}><th scope="row">{layer}</th>'
        f'<td><i style="width:{100 * _known(rate):.2f}%"></i></td>'
        f"<td>{_data('layer-rate', 100 * rate)}&nbsp;%</td></tr>"
        for layer, (rate, free) in enumerate(zip(trace.layer_rates.tolist(), trace.routed.tolist(), strict=True))
    )
    return f'<table class="bars"><caption>Share of tokens that ran each layer</caption><tbody>{lines}</tbody></table>'


def _known(rate: float) -> float:
    return 0.0 if math.isnan(rate) else rate


def _facts(trace: Trace) -> str:
    totals = {
        "Tokens": _data("total-tokens", trace.count, ".0f"),
        "Layers per token": f"{_data('total-depth', trace.mean_depth, '.3f')} of {trace.layers}",
        "Layer computations": _counted(trace),
    }
    if trace.segments is not None:
        segments = sum(sum(row.starts) for row in trace.rows())
        totals["Segments"] = _data("segments", segments, ".0f")
    if trace.margin is not None:
        totals["Nearest gate to its threshold"] = _data("margin", trace.margin, ".2g")
    facts = {escape(str(name)): escape(shown(str(value))) for name, value in trace.facts.items()}
    lines = "".join(
        f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in (totals | facts).items()
    )
    table = f'<table class="facts"><tbody>{lines}</tbody></table>'
    return f'<section><h2>Totals and settings</h2>{table}\n<p class="hint">{CAVEAT}</p></section>'


def _counted(trace: Trace) -> str:
    ran = int(trace.depth[trace.valid].sum())
    return f"{_data('ran', ran, '.0f')} of {_data('cells', trace.count * trace.layers, '.0f')}"
