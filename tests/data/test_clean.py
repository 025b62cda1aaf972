"""Cleaning leaves an alphabet, single spaces, and digits in words."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laval.data import LANGUAGES, clean
from tests.conftest import shared_path


@pytest.mark.parametrize(
    ("language", "text", "cleaned"),
    [
        ("en", " The Mach 2.5 nozzle\n\n(1888)", " the mach two five nozzle one eight eight eight "),
        ("en", "_START_ARTICLE_\nRОСK_NEWLINE_café", " rock caf "),  # О and С are Cyrillic
        ("fi", "Ääni on 3 ÖLJYÄ", "ääni on kolme öljyä"),
        ("vi", unicodedata.normalize("NFD", "Tiếng Việt 10"), "tiếng việt một không "),
        ("he", "שָׁלוֹם 4 עולם abc", "שלום ארבע עולם "),
    ],
)
def test_examples(language, text, cleaned):
    assert clean(text, language) == cleaned


def test_lines_are_kept_when_wanted():
    assert clean("One \n\n  two, 3", newlines=True) == "one\ntwo three "


@given(st.text(), st.sampled_from(list(LANGUAGES)), st.booleans())
def test_only_the_alphabet_is_left_and_cleaning_twice_is_cleaning_once(text, language, newlines):
    cleaned = clean(text, language, newlines)
    assert set(cleaned) <= set(LANGUAGES[language].letters) | ({" ", "\n"} if newlines else {" "})
    assert "  " not in cleaned and clean(cleaned, language, newlines) == cleaned


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_for_digits_are_in_the_alphabet(language):
    known = LANGUAGES[language]
    assert len(set(known.digits)) == 10 and set("".join(known.digits)) <= set(known.letters)
    assert len(set(known.letters)) == len(known.letters) == {"en": 26, "fi": 29, "he": 27, "vi": 89}[language]


def test_text8_is_clean():
    text = shared_path("data", "text", "text8_first16k.txt").read_text("utf-8").rstrip("\n")
    assert clean(text) == text


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match="language is 'xx'; expected one of en, fi, he, vi"):
        clean("text", "xx")
