"""What a forward did, shown to people: traces, depth maps (page and terminal), curves."""

from laval.report.figures import curve_svg
from laval.report.pieces import token_pieces
from laval.report.terminal import depth_legend, depth_text, layer_bars
from laval.report.trace import Row, Trace

__all__ = ["Row", "Trace", "curve_svg", "depth_legend", "depth_text", "layer_bars", "token_pieces"]
