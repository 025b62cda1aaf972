"""Depth maps in a terminal. Colour goes when the console has none (a pipe, NO_COLOR); the text stays the same."""

from collections.abc import Collection, Sequence

from rich.style import Style
from rich.text import Text

from laval.report.glyphs import shown
from laval.report.scale import LIGHT_INK, Scale

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
EIGHTHS = " ▏▎▍▌▋▊▉█"


def depth_text(
    pieces: Sequence[str], depth: Sequence[int], layers: int, floor: int | None = None, marks: bool = False
) -> Text:
    """The text, each token on the colour of its depth.

    floor: the depth the scale starts at (default: the shallowest token's); give it when printing token by token.
    marks: write the depth after every token too, for output without colour.
    Raises ValueError when `pieces` and `depth` differ in length.
    """
    depth = [int(d) for d in depth]
    if len(pieces) != len(depth):
        raise ValueError(f"depth has {len(depth)} entries; expected one per piece, {len(pieces)}")
    scale = Scale.of(depth, layers) if floor is None else Scale(floor, layers)
    text = Text()
    for piece, d in zip(pieces, depth, strict=True):
        body = shown(piece)
        end = len(body.rstrip("\n"))
        text.append(body[:end] if marks else body, style=_style(scale, d))
        if marks:  # before a line break, not at the start of the next line
            text.append(str(d).translate(SUPERSCRIPT), style="dim")
            text.append(body[end:])
    return text


def depth_legend(layers: int, floor: int = 0) -> Text:
    """The scale on one line, from `floor` to all layers."""
    scale = Scale(floor, layers)
    text = Text("layers run  ")
    for d in range(floor, layers + 1):
        text.append(f" {d} ", style=_style(scale, d))
    return text


def layer_bars(layer_rates: Sequence[float], width: int = 30, only: Collection[int] | None = None) -> Text:
    """One line per layer: the share of tokens that ran it, as a bar and in percent. only: those layers alone."""
    rates = [float(rate) for rate in layer_rates]
    digits = len(str(max(0, len(rates) - 1)))
    text = Text()
    for layer, rate in enumerate(rates):
        if only is not None and layer not in only:
            continue
        known = rate == rate  # NaN: no token at all
        text.append(f"layer {layer:>{digits}}  ")
        text.append(f"{bar(rate if known else 0, width):<{width}}", style="cyan")
        text.append(f"  {100 * rate:5.1f} %\n" if known else "      –\n")
    text.rstrip()
    return text


def bar(share: float, width: int) -> str:
    """A share, 0 to 1, as a bar of at most `width` characters."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _style(scale: Scale, depth: int) -> Style:
    return Style(color=LIGHT_INK, bgcolor=scale.color(depth))
