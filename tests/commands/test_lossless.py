"""`laval generate --lossless`: the text of --dense, and the account of how it came about."""

from __future__ import annotations

import pytest

from tests.commands.conftest import run

WORDS = ("When does the ferry cross?", "--max-new-tokens", "24", "--json")


@pytest.mark.parametrize("draft", ["auto", "skip", "exit", "lookup", "none"])
def test_text_and_account(place, draft):
    dense = run("generate", place.plugin, *WORDS, "--dense")
    said = run("generate", place.plugin, *WORDS, "--lossless", "--draft", draft)
    assert said.code == 0 and said.document["text"] == dense.document["text"]
    assert said.document["new_tokens"] == dense.document["new_tokens"]
    assert "tokens per verification pass" in said.err
    assert draft == "auto" or set(said.document["rounds"]) <= {draft, "none"}


def test_a_seed_gives_one_sampled_text(place):
    options = ("--lossless", "--draft", "lookup", "--temperature", "0.8", "--seed", "3")
    words = ("generate", place.plugin, *WORDS, *options)
    assert run(*words).document["text"] == run(*words).document["text"]


@pytest.mark.parametrize(
    "options, name",
    [
        (("--lossless", "--dense"), "--dense and --lossless"),
        (("--lossless", "--show-depth"), "--show-depth and --lossless"),
        (("--lossless", "--draft", "magic"), "draft is 'magic'"),
        (("--draft", "skip"), "without --lossless"),
    ],
)
def test_contradictions_are_named(place, options, name):
    said = run("generate", place.plugin, *WORDS, *options)
    assert said.code == 2 and name in " ".join(said.err.split())
