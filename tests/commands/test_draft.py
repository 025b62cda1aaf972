"""laval draft: what it writes is what generate --lossless uses."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.commands.conftest import run

QUESTIONS = ["Noon?", "What is it?", "Who goes there?", "Where to?", "When?", "Why not?"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(QUESTIONS), encoding="utf-8")
    return path


@pytest.fixture
def plugin(place, tmp_path):
    return shutil.copytree(place.plugin, tmp_path / "plugin")


def drafted(plugin, prompts, *more):
    sizes = "--new", 8, "--batch", 3, "--epochs", 2, "--vocabulary", 100
    return run("draft", plugin, "--prompts", prompts, "--work", prompts.parent / "answers", *sizes, "--json", *more)


def test_a_draft_lies_beside_the_plugin_and_is_used(plugin, prompts):
    said = drafted(plugin, prompts)
    assert said.code == 0, said.err
    assert said.document["draft"] == str(plugin / "draft.safetensors") and (plugin / "plugin.safetensors").is_file()
    assert said.document["prompts"] == 6 and len(said.document["acceptance"]) == 4
    plain = run("generate", plugin, "Noon?", "--dense", "--max-new-tokens", 12, "--json")
    found = run("generate", plugin, "Noon?", "--lossless", "--draft", "head", "--max-new-tokens", 12, "--json")
    assert found.document["text"] == plain.document["text"]


def test_chat_is_asked_by_its_first_question(plugin, prompts, tmp_path):
    turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": "No."}] for text in QUESTIONS]
    chat = tmp_path / "chat.jsonl"
    chat.write_text("\n".join(json.dumps({"messages": each}) for each in turns), encoding="utf-8")
    assert drafted(plugin, prompts, "--prompts", chat).document["prompts"] == 6  # the same ones count once


def test_mistakes_are_named(plugin, place, prompts, tmp_path):
    elsewhere = drafted(plugin, prompts, "--out", tmp_path)
    assert elsewhere.code == 2 and "expected the folder of a plug-in" in elsewhere.err
    prompts.write_text("Noon?\nNoon?\n", encoding="utf-8")
    alone = drafted(plugin, prompts)
    assert alone.code == 2 and "prompts: found 1; expected two at least" in alone.err
