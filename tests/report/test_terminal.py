import io

import pytest
from rich.console import Console

from laval.report import depth_legend, depth_text, layer_bars
from laval.report.scale import Scale


def printed(text, **how) -> str:
    out = io.StringIO()
    Console(file=out, width=200, **how).print(text, end="")
    return out.getvalue()


def test_each_token_stands_on_the_colour_of_its_depth():
    text = depth_text(["deep", " shallow"], [30, 20], 30)
    backgrounds = [span.style.bgcolor.name for span in text.spans]
    assert backgrounds == [Scale(20, 30).color(30), Scale(20, 30).color(20)]
    assert "48;2;" in printed(text, force_terminal=True, color_system="truecolor", no_color=False)


def test_a_given_floor_keeps_colours_the_same_token_by_token():
    whole = depth_text(["a", "b"], [24, 30], 30, floor=20)
    alone = depth_text(["b"], [30], 30, floor=20)
    assert whole.spans[1].style == alone.spans[0].style


def test_pipes_and_no_color_get_plain_text(monkeypatch):
    text = depth_text(["the", " flow\n", "", " 😀"], [3, 2, 3, 3], 4)
    assert printed(text) == "the flow\n 😀"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2;" not in printed(text, force_terminal=True, color_system="truecolor")


def test_marks_write_the_depth_after_the_token():
    assert depth_text(["the", " flow"], [30, 27], 30, marks=True).plain == "the³⁰ flow²⁷"
    assert depth_text(["the\n", "\n\n", "a"], [1, 2, 3], 3, marks=True).plain == "the¹\n²\n\na³"


def test_bars_of_some_layers_keep_their_numbers():
    lines = layer_bars([1, 0.5, 1], only=(1,)).plain.splitlines()
    assert len(lines) == 1 and lines[0].startswith("layer 1") and "50.0 %" in lines[0]


def test_control_characters_cannot_reach_the_terminal():
    plain = depth_text(["\x1b[2J", "\x07", "\ud83d"], [1, 1, 1], 2).plain
    assert plain == "␛[2J␇\ufffd"


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="depth has 1 entries; expected one per piece, 2"):
        depth_text(["a", "b"], [1], 2)


def test_legend_names_every_depth_of_the_scale():
    assert depth_legend(30, floor=26).plain.split()[2:] == ["26", "27", "28", "29", "30"]


def test_bars_are_as_long_as_the_rates():
    lines = layer_bars([1.0, 0.5, 0.0, float("nan")], width=8).plain.splitlines()
    assert [line.count("█") for line in lines] == [8, 4, 0, 0]
    assert [line.split()[-2] for line in lines[:3]] == ["100.0", "50.0", "0.0"]
    assert "nan" not in lines[3]
