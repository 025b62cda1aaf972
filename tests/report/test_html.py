import re
from html.parser import HTMLParser

import pytest
import torch

from laval.report import Trace
from laval.report.charts import ranges
from laval.report.glyphs import depth_by_kind, kind_of, label, shown
from laval.report.html import page
from laval.report.scale import DARK, DARK_INK, LIGHT, LIGHT_INK, Scale, contrast, luminance
from tests.report.traces import trace

VOID = {"meta", "br"}
NASTY = ["<script>", "alert('&')", "</p>", "\n", "\t", "\x00", "\x1b[31m", "\u202e", "\ud83d", "", "😀", " כן"]


class Page(HTMLParser):
    """Collects numbers, token titles and the text of the depth maps, and checks that elements nest."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.numbers, self.titles, self.maps, self.tags, self.attributes = [], {}, [], [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append((tag, given.get("class") or ""))
        if tag == "data":
            self.numbers.setdefault(given["data-name"], []).append(float(given["value"] or "nan"))
        if tag == "p" and given.get("class") == "map":
            self.maps.append("")
        if tag == "span" and self.within_map():
            self.titles.append(given["title"])

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.within_map():
            self.maps[-1] += data

    def within_map(self):
        return ("p", "map") in self.open


def test_the_numbers_on_the_page_are_the_trace_s():
    seen = trace([["the", " flow", ".", "1"], ["\n", "x"]], new_from=[2, 4])
    numbers = Page(page(seen)).numbers
    assert numbers["mean-depth"] == numbers["total-depth"] == [seen.mean_depth]
    assert numbers["tokens"] == numbers["total-tokens"] == [6]
    assert numbers["skipped-percent"] == [100 * seen.skipped_share]
    assert numbers["layer-rate"] == [100 * rate for rate in seen.layer_rates.tolist()]
    assert numbers["row-mean-depth"] == [row.mean_depth for row in seen.rows()]
    assert numbers["ran"] == [int(seen.run[:, seen.valid].sum())] and numbers["cells"] == [36]
    assert numbers["margin"] == [seen.margin]


def test_every_token_says_its_depth_and_its_skipped_layers():
    seen = trace([["a", "b", "c"], ["d"]])
    told = iter(Page(page(seen)).titles)
    for row in seen.rows():
        for depth, skipped in zip(row.depth, row.skipped, strict=True):
            title = next(told)
            assert title.startswith(f"{depth} of 6 layers")
            assert title.partition("skipped ")[2] == ranges(skipped)


def test_text_is_escaped_and_joins_to_what_was_decoded():
    seen = trace([NASTY], facts={"<i>": "<script>\x00"})
    parsed = Page(page(seen))
    assert parsed.maps == ["".join(map(shown, NASTY))]
    assert parsed.tags.count("script") == 1
    page(seen).encode("utf-8")


def test_plain_text_is_kept_exactly():
    pieces = ["naïve", " café\n", "\t", "  x", " 😀", "<b>", "&amp;"]
    assert Page(page(trace([pieces]))).maps == ["".join(pieces)]


def test_the_page_asks_for_nothing_from_elsewhere():
    html = page(trace([["a"]]))
    names = {name for name, _ in Page(html).attributes}
    assert not names & {"src", "href", "srcset", "data", "action", "xlink:href"}
    assert not re.search(r"https?:|url\(|@import|//[a-z]+\.", html)


@pytest.mark.parametrize("rows, pads", [([[]], 0), ([], 0), ([["a"]], 0), ([[]], 3), ([[], ["a", "b"]], 1)])
def test_empty_short_and_padded_traces_draw(rows, pads, tmp_path):
    seen = trace(rows, pads=pads)
    html = seen.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    parsed = Page(html)
    assert "<pad>" not in html and "&lt;pad&gt;" not in html
    assert len(parsed.titles) == sum(map(len, rows))
    assert "NaN" not in html and ">nan" not in html


def test_a_long_text_stays_small():
    pieces = [" word"] * 10_000
    run = torch.rand(30, 1, 10_000, generator=torch.Generator().manual_seed(0)) > 0.1
    html = page(Trace(tokens=[pieces], run=run, valid=torch.ones(1, 10_000, dtype=torch.bool)))
    assert len(html) < 1_500_000
    assert html.count("<svg") < 10


def test_grid_fills_the_layers_that_ran():
    run = torch.tensor([[[1, 1, 1]], [[1, 0, 1]]]).bool()
    html = page(Trace(tokens=[["a", "b", "c"]], run=run, valid=run[0]))
    first, second = re.findall(r'<path class="ran" d="([^"]*)"', html)
    widths = [[int(w) // 11 for w in re.findall(r"h(\d+)v", path)] for path in (first, second)]
    assert widths == [[3], [1, 1]]


def test_kinds_of_token_and_their_depth():
    pieces = ["The", " flow", "ing", "ा", " ", "12", ".", "\n\n", "", "😀", "<|im_end|>"]
    kinds = [kind_of(piece, before) for before, piece in zip(["", *pieces], pieces, strict=False)]
    word, more, dot = "start of word", "continuation", "punctuation"
    white, part = "whitespace", "part of a character"
    assert kinds == [word, word, more, more, white, "digit", dot, white, part, dot, "special"]
    seen = trace([pieces])
    found = depth_by_kind(seen)
    assert sum(count for count, _ in found.values()) == len(pieces)
    assert sum(count * mean for count, mean in found.values()) == pytest.approx(seen.mean_depth * len(pieces))


def test_labels_are_short_and_visible():
    assert [label(p) for p in ["", " ", "\n", "\t", " flow", "thermodynamics"]] == [
        "·",
        "␣",
        "↵",
        "⇥",
        "flow",
        "thermody…",
    ]


def test_ranges():
    assert ranges([5, 9, 10, 11, 13, 14]) == "5 9–11 13 14"
    assert ranges([]) == ""


@pytest.mark.parametrize("stops, ink", [(LIGHT, LIGHT_INK), (DARK, DARK_INK)])
def test_colours_order_by_lightness_and_text_on_them_reads(stops, ink):
    colors = [Scale(0, 30).color(depth, stops) for depth in range(31)]
    light = [luminance(color) for color in colors]
    assert light == sorted(light, reverse=stops is LIGHT) and len(set(light)) == 31
    assert min(contrast(color, ink) for color in colors) >= 4.5


def test_scale_covers_what_was_seen_and_never_one_layer_only():
    assert Scale.of([23, 30], 30) == Scale(23, 30)
    assert Scale.of([30], 30) == Scale(26, 30) == Scale.of([], 30)
    assert Scale.of([2], 2) == Scale(0, 2)
    assert Scale(20, 30).color(3) == Scale(20, 30).color(20)
