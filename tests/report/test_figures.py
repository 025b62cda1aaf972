import re
from xml.etree import ElementTree

import pytest

from laval.report import curve_svg
from laval.report.figures import budget_svg, picture

POINTS = [
    {"method": m, "depth": d, "ratio": r} for m, d, r in [("ours", 26, 1.2), ("ours", 28, 1.04), ("random", 28, 1.5)]
]


def test_a_curve_draws_a_line_per_method_and_a_legend():
    svg = curve_svg(POINTS, title="Quality <against> depth")
    ElementTree.fromstring(svg)
    for text in ("ours", "random", "mean depth", "perplexity relative to dense", "Quality &lt;against&gt; depth"):
        assert text in svg
    assert "currentColor" in svg and "#0072b2" in svg and "#d55e00" in svg


def test_a_curve_sits_in_a_page():
    svg = curve_svg(POINTS)
    assert svg.startswith("<svg") and "<metadata" not in svg
    assert not re.search(r'(?:href|src)="(?!#)', svg)
    assert svg == curve_svg(POINTS)


def test_other_keys_and_a_cut_axis():
    points = [{"name": "a", "layers": 3, "loss": 2.0}, {"name": "a", "layers": 4, "loss": 9.0}]
    assert ElementTree.fromstring(curve_svg(points, x="layers", y="loss", by="name", y_max=4)).tag.endswith("svg")


def test_bad_points_are_named():
    with pytest.raises(ValueError, match="points is empty"):
        curve_svg([])
    with pytest.raises(ValueError, match=r"points\[0\] has no 'ratio'"):
        curve_svg([{"method": "ours", "depth": 3}])


def test_a_budget_curve_stands_beside_dense_and_is_a_file_of_its_own():
    points = [{"depth": d, "perplexity": 60 - d, "decode": 1.1, "prefill": 1.2} for d in (27.0, 25.0)]
    drawing = ElementTree.fromstring(picture(budget_svg(points, dense_perplexity=31.5)))
    text = " ".join(drawing.itertext())
    for words in ("skipping", "dense", "perplexity", "ideal, decode", "ideal, prefill", "times faster than dense"):
        assert words in text
    assert "background" in drawing.get("style")
    with pytest.raises(ValueError, match="points is empty"):
        budget_svg([], 31.5)
