"""An error stands on a line of its own, whatever was on the screen before it."""

from __future__ import annotations

import sys

import pytest
from tqdm import tqdm

from laval.train.trainer import ObjectiveTrainer
from tests.commands.conftest import run
from tests.commands.test_train import written


def last_line(said) -> str:
    """The last line, with nothing behind it; a carriage return starts no new one."""
    *_, line, rest = said.err.split("\n")
    assert rest == ""
    return line


def test_the_bar_of_a_run_that_fails_is_finished_first(place, tmp_path, monkeypatch):
    once = ObjectiveTrainer.training_step

    def broken_at_third(self, *arguments, **options):
        if self.state.global_step == 3:
            raise ValueError("loss is nan")
        return once(self, *arguments, **options)

    monkeypatch.setattr(ObjectiveTrainer, "training_step", broken_at_third)
    said = run("train", written(place, tmp_path))
    assert said.code == 2 and "3/8" in said.err
    assert last_line(said) == "error loss is nan"


def test_ctrl_c_in_a_bar_is_said_on_a_line_of_its_own(place, tmp_path, monkeypatch):
    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(ObjectiveTrainer, "training_step", stopped)
    assert last_line(run("train", written(place, tmp_path))) == "stopped"


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_bars_of_all_kinds_are_finished_first(place, monkeypatch, leave, closed):
    kept = []

    def broken(*arguments, **options):
        kept.append(tqdm(total=3, leave=leave, file=sys.stderr))
        kept[0].update()
        if closed:
            kept[0].close()
        raise ValueError("text is broken")

    monkeypatch.setattr("laval.evaluate.perplexity", broken)
    assert last_line(run("eval", place.plugin, "--text", place.text)) == "error text is broken"


def test_text_that_was_streaming_is_finished_first(place, monkeypatch):
    def broken(model, ids, streamer, **options):
        streamer.console.print("The ferry cro", end="")
        raise ValueError("out of ink")

    monkeypatch.setattr("laval.commands.stream.trace_generation", broken)
    said = run("generate", place.plugin, "hi")
    assert said.out.endswith("The ferry cro\n") and last_line(said) == "error out of ink"
