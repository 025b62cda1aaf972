"""Each verb does what it says, for people and for programs."""

from __future__ import annotations

import json
import math
import re
import shutil
from xml.etree import ElementTree

import pytest
import torch

import laval
from laval.models.record import read_record
from laval.report.glyphs import shown
from tests.commands.conftest import LAYERS, ROUTED, run


def test_help_names_every_verb_on_one_line_each():
    said = run("--help")
    assert said.code == 0
    for verb in ("demo", "generate", "trace", "info", "eval", "bench", "train", "draft", "calibrate"):
        assert sum(line.lstrip("│ ").startswith(f"{verb} ") for line in said.out.splitlines()) == 1, verb


def test_version():
    assert run("--version").out.strip() == f"laval {laval.__version__}"


def test_generate_is_what_transformers_generates(place):
    said = run("generate", place.plugin, "Noon?", "--raw", "--max-new-tokens", 12, "--json")
    model = laval.load(place.plugin)
    ids = model.tokenizer("Noon?", return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert said.document["text"] == model.tokenizer.decode(made, skip_special_tokens=True)
    assert said.document["new_tokens"] == len(made)
    assert said.document["prompt_tokens"] == ids.shape[1]


def test_generate_streams_the_whole_text(place):
    plain = run("generate", place.plugin, "Noon?", "--max-new-tokens", 12)
    told = run("generate", place.plugin, "Noon?", "--max-new-tokens", 12, "--json")
    text = shown(told.document["text"])  # nothing that a model says may steer the terminal
    assert plain.out.strip("\n") == text.strip("\n") != ""
    assert text.strip("\n") in told.err


def test_show_depth_marks_tokens_with_their_depth(place):
    said = run("generate", place.plugin, "Noon?", "--max-new-tokens", 12, "--show-depth", "--json")
    known = said.document
    assert len(known["depth"]) == known["new_tokens"] == 12
    assert known["mean_depth"] == pytest.approx(sum(known["depth"]) / 12)
    assert set(known["depth"]) <= set(range(LAYERS - len(ROUTED), LAYERS + 1))
    assert "layers run" in said.err and "layer 3" in said.err
    written = [character for character in said.err.split("layers run")[0] if character in "¹²³⁴"]
    assert len(written) >= 5  # no colour in a pipe: the depth follows each piece, broken characters as one
    assert {"¹²³⁴".index(mark) + 1 for mark in written} <= set(known["depth"])


def test_generate_dense_runs_every_layer_and_sampling_obeys_the_seed(place):
    dense = run("generate", place.plugin, "Noon?", "--dense", "--max-new-tokens", 5, "--json")
    assert dense.document["mean_depth"] == LAYERS
    words = ("generate", place.plugin, "Noon?", "--temperature", 1.5, "--top-p", 0.9, "--json", "--max-new-tokens", 9)
    first, again, other = run(*words), run(*words), run(*words, "--seed", 7)
    assert first.document["text"] == again.document["text"] != other.document["text"]


def test_chat_template_is_used_where_there_is_one(place):
    chat = run("generate", place.plugin, "Noon?", "--max-new-tokens", 1, "--json").document["prompt_tokens"]
    raw = run("generate", place.plugin, "Noon?", "--raw", "--max-new-tokens", 1, "--json").document["prompt_tokens"]
    assert chat > raw == len("Noon?")


@pytest.mark.parametrize("file", ["text", "chat"])
def test_eval_reports_both_models(place, file):
    said = run("eval", place.plugin, "--text", getattr(place, file), "--length", 64, "--limit", 200, "--json")
    known = said.document
    assert {"perplexity", "dense_perplexity", "bits_per_byte", "mean_depth", "tokens"} <= known.keys()
    assert known["ratio"] == pytest.approx(known["perplexity"] / known["dense_perplexity"])
    assert LAYERS - len(ROUTED) <= known["mean_depth"] < LAYERS
    assert known["mean_depth"] == pytest.approx(sum(known["layer_rates"]))
    assert known["tokens"] == 199
    if file == "text":  # every token is one byte
        assert known["bits_per_byte"] == pytest.approx(math.log2(known["perplexity"]), rel=1e-2)


def test_depth_moves_along_the_curve(place):
    curve = run("info", place.plugin, "--json").document["curve"]
    words = ("eval", place.plugin, "--text", place.text, "--length", 64, "--limit", 400, "--json", "--depth")
    measured = [run(*words, point["depth"]).document["mean_depth"] for point in curve]
    assert measured == pytest.approx([point["depth"] for point in curve], abs=0.1)


def test_eval_of_a_stock_model_is_dense(place):
    known = run("eval", place.base, "--text", place.text, "--length", 64, "--json").document
    assert known["perplexity"] == pytest.approx(known["dense_perplexity"], rel=1e-6) and known["mean_depth"] == LAYERS


def test_trace_writes_the_page_and_the_totals(place, tmp_path):
    page = tmp_path / "map.html"
    known = run("trace", place.plugin, "--text", place.text, "--limit", 100, "--html", page, "--json").document
    assert known["tokens"] == 100 and known["html"] == str(page)
    assert known["skipped_share"] == pytest.approx(1 - known["mean_depth"] / LAYERS)
    html = page.read_text(encoding="utf-8")
    assert "ferry crosses the river" in re.sub(r"<[^>]*>", "", html)
    assert "generated text begins" not in html


def test_trace_lets_the_model_go_on(place, tmp_path):
    page = tmp_path / "map.html"
    known = run("trace", place.plugin, "Noon?", "--generate", 7, "--html", page, "--json").document
    assert known["tokens"] == len("Noon?") + 7
    assert "generated text begins" in page.read_text(encoding="utf-8")


def test_info_of_a_plugin(place):
    said = run("info", place.plugin, "--json")
    known = said.document
    assert known["routed_layers"] == list(ROUTED) and known["layers"] == LAYERS
    assert known["mean_depth"] == pytest.approx(known["curve"][1]["depth"], abs=0.02)
    assert known["ideal_speedup"]["decode"] > 1
    assert known["megabytes"]["on_disk"] > known["megabytes"]["plugin"] / 2  # bfloat16, and a header
    assert "Budget curve" in run("info", place.plugin).out


def test_bench_gives_a_record_per_cell(place):
    known = run("bench", place.plugin, "--prompt", 16, "--prefill", 32, "--rounds", 2, "--json").document
    assert [cell["cell"] for cell in known["cells"]] == ["decode", "prefill"]
    for cell in known["cells"]:
        assert cell["seconds"]["dense"] > 0 and cell["seconds"]["skipping"] > 0
        assert cell["ratio"] > 0 and cell["interval"][0] <= cell["ratio"] <= cell["interval"][1]
        assert cell["ideal"] > 0 and LAYERS - len(ROUTED) <= cell["mean_depth"] < LAYERS
    assert {"device", "dtype", "threads", "commit"} <= known["machine"].keys()


def test_weights_of_8_bits(place):
    """Near the text's own perplexity, and what laval.load gives; bench says what it measured."""
    words = ("eval", place.plugin, "--text", place.text, "--length", 64, "--limit", 200, "--json")
    plain, small = run(*words).document, run(*words, "--weights", "int8").document
    for name in ("perplexity", "dense_perplexity"):
        assert small[name] == pytest.approx(plain[name], rel=0.02) and small[name] != plain[name]
    words = ("generate", place.plugin, "Noon?", "--raw", "--max-new-tokens", 8, "--json")
    model = laval.load(place.plugin, weights="int8")
    ids = model.tokenizer("Noon?", return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    expected = model.tokenizer.decode(made, skip_special_tokens=True)
    assert run(*words, "--weights", "int8").document["text"] == expected
    grid = ("bench", place.plugin, "--prompt", 16, "--prefill", 16, "--rounds", 1)
    assert run(*grid, "--weights", "int8", "--json").document["machine"]["weights"] == "int8"
    assert "int8 weights" in " ".join(run(*grid, "--weights", "int8").out.split())
    assert run(*grid, "--json").document["machine"]["weights"] is None


@pytest.mark.parametrize("verb", ["generate", "eval", "bench"])
def test_help_names_the_weights(verb):
    assert "--weights" in run(verb, "--help").out


def test_bench_measures_a_grid_and_draws_it(place, tmp_path):
    grid = ("--batch", "1,2", "--prompt", "8,12", "--prefill", "16", "--rounds", 1, "--plot", tmp_path / "speed.svg")
    known = run("bench", place.plugin, *grid, "--json").document
    cells = [(cell["cell"], cell["batch"], cell["prompt"]) for cell in known["cells"]]
    assert cells == [("decode", b, p) for b in (1, 2) for p in (8, 12)] + [("prefill", 1, 16)]
    assert set(known["cells"][0]["seconds"]) == {"dense", "skipping", "stock"}
    assert ElementTree.parse(tmp_path / "speed.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("batch", ["0", "1,,2", "a", ""])
def test_bench_says_what_a_list_of_numbers_is(place, batch):
    said = run("bench", place.plugin, "--batch", batch)
    assert said.code == 2 and "expected whole numbers from 1" in said.err


def test_calibrate_saves_the_curve_and_keeps_card_and_number_type(place, tmp_path):
    folder = tmp_path / "plugin"
    shutil.copytree(place.plugin, folder)
    words = ("--text", place.text, "--depths", "2.2,2.8", "--depth", 2.5, "--length", 64, "--limit", 300)
    said = run("calibrate", folder, *words, "--plot", tmp_path / "curve.svg", "--json")
    known = said.document
    record = read_record(folder / "laval.json")[0]
    assert [point["depth"] for point in known["curve"]] == [point["depth"] for point in record.curve]
    assert [point["depth"] for point in record.curve] == pytest.approx([2.2, 2.8], abs=0.05)
    assert record.dtype == "bfloat16"
    assert "A card of its own." in (folder / "README.md").read_text(encoding="utf-8")
    assert run("info", folder, "--json").document["mean_depth"] == pytest.approx(2.5, abs=0.02)
    eval_words = ("--text", place.text, "--length", 64, "--limit", 300, "--json")
    untouched = run("eval", folder, *eval_words).document["dense_perplexity"]
    assert known["dense_perplexity"] == pytest.approx(untouched, rel=1e-4)
    assert all(point["decode"] > 1 for point in known["points"]) and "dense" in said.err and "█" in said.err
    drawing = ElementTree.parse(tmp_path / "curve.svg").getroot()
    text = " ".join(drawing.itertext())
    assert "perplexity" in text and "dense" in text and "ideal, decode" in text


def test_demo_shows_both_answers_quality_and_speed(place, tmp_path):
    page = tmp_path / "demo.html"
    said = run("demo", "--model", place.plugin, "--out", page, "--max-new-tokens", 4, "--json")
    known = said.document
    assert page.stat().st_size > 5000 and known["html"] == str(page)
    assert len(known["answers"]) == 3
    for answer in known["answers"]:
        assert answer["prompt"] in said.err and LAYERS - len(ROUTED) <= answer["mean_depth"] <= LAYERS
    assert known["perplexity"] > 0 and known["dense_perplexity"] > 0 and known["speed"]["ratio"] > 0
    for word in ("dense", "skipping", "perplexity", "seconds per token", "ours and small"):
        assert word in said.err


def test_every_verb_takes_json():
    for verb in ("demo", "generate", "trace", "info", "eval", "bench", "train", "draft", "calibrate"):
        assert "--json" in run(verb, "--help").out, verb


def test_json_is_the_only_thing_on_standard_output(place):
    for words in (["info"], ["eval", place.plugin, "--text", place.text, "--length", 64]):
        said = run(*words, "--json")
        assert len(said.out.strip().splitlines()) == 1 and isinstance(json.loads(said.out), dict)


def test_threads_are_as_asked(place):
    before = torch.get_num_threads()
    try:
        words = ("--prompt", 8, "--prefill", 16, "--rounds", 1, "--threads", 1, "--json")
        assert run("bench", place.plugin, *words).document["machine"]["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_bench_learns_where_skipping_loses_and_load_knows(place, tmp_path, monkeypatch):
    monkeypatch.setenv("LAVAL_CACHE", str(tmp_path))
    monkeypatch.setattr("laval.commands.bench.SECONDS", 0.5)
    assert run("info", place.plugin, "--json").document["break_even"] is None
    said = run("bench", place.plugin, "--learn")
    assert said.code == 0 and "times faster" in said.out and "break_even.json" in said.out.replace("\n", "")
    known = run("info", place.plugin, "--json").document["break_even"]
    assert set(known["decode"]) == {"1", "2", "4", "8", "16"} and set(known["prefill"]) == {"64", "512"}
    assert "learned at 2.5" in run("info", place.plugin).out
