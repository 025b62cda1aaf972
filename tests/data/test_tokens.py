"""Files become token files once, and what is wrong with a file is said by name."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laval.data import Bytes, Characters, Inputs, open_tokens, prepare
from laval.data import tokens as module
from tests.conftest import shared_path

CHARACTERS = Inputs("characters")
TEXT = " one two nine two one "


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text8"
    file.write_text(TEXT, "utf-8")
    return file


def test_characters_are_numbered_by_frequency(text, tmp_path):
    found = prepare(text, tmp_path / "cache", CHARACTERS)
    assert found.vocabulary.characters == " noetwi"  # 6, 4, 4, 3, 2, 2, 1: equals by code point
    assert found.vocabulary.decode(found.ids) == TEXT and found.ids.dtype == np.uint8
    assert isinstance(found.ids, np.memmap)


@given(st.text(min_size=1))
def test_encoding_and_decoding(text):
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return  # half of a surrogate pair is no text
    letters = Characters.of([text])
    counts = [text.count(letter) for letter in letters.characters]
    assert counts == sorted(counts, reverse=True)
    assert letters.decode(letters.encode(text)) == text and Bytes().decode(Bytes().encode(text)) == text
    assert letters.widths[letters.encode(text)].sum() == len(raw) == len(Bytes().encode(text))


def test_a_zip_holds_what_the_file_holds(text, tmp_path):
    packed = tmp_path / "text8.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(text, "text8")
    assert bytes(prepare(packed, tmp_path / "cache").ids) == TEXT.encode()


def test_bytes_need_not_be_text(tmp_path):
    file = tmp_path / "enwik8"
    file.write_bytes(b"<page>\xff\xfe</page>")
    assert bytes(prepare(file, tmp_path / "cache").ids) == file.read_bytes()
    with pytest.raises(ValueError, match="not UTF-8 at byte 6; convert it, or read it as bytes"):
        prepare(file, tmp_path / "cache", CHARACTERS)


def test_folders_and_jsonl_are_joined(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "b.txt").write_text("Four 4", "utf-8")
    (folder / "a.jsonl").write_text(json.dumps({"body": "Ä"}) + "\n\n" + json.dumps({"body": "two"}), "utf-8")
    (folder / ".hidden").write_text("no", "utf-8")
    cache = tmp_path / "cache"
    assert bytes(prepare(folder, cache, Inputs(field="body")).ids) == "Ä\ntwo\nFour 4".encode()
    found = prepare(folder, cache, Inputs("characters", language="fi", field="body"))
    assert found.vocabulary.decode(found.ids) == "ä two four neljä"
    assert found.vocabulary.widths[found.ids].sum() == len("ä two four neljä".encode())
    with pytest.raises(ValueError, match="a.jsonl, line 1: no text under 'text'"):
        prepare(folder, cache)


def test_long_texts_go_through_in_pieces(text, tmp_path, monkeypatch):
    whole = prepare(text, tmp_path / "whole", CHARACTERS)
    monkeypatch.setattr("laval.data.vocabulary.PIECE", 5)
    pieced = prepare(text, tmp_path / "pieced", CHARACTERS)
    assert pieced.about == whole.about and np.array_equal(pieced.ids, whole.ids)


def test_a_text_is_written_once(text, tmp_path, monkeypatch):
    first = prepare(text, tmp_path / "cache", CHARACTERS)
    monkeypatch.setattr(module, "write", None)
    again = prepare(text, tmp_path / "cache", CHARACTERS)
    assert again.about == first.about and np.array_equal(again.ids, first.ids)


def test_a_source_that_changed_is_told(text, tmp_path):
    prepare(text, tmp_path / "cache")
    text.write_text("other words", "utf-8")
    with pytest.raises(ValueError, match="changed since its tokens were written"):
        prepare(text, tmp_path / "cache")
    assert bytes(prepare(text, tmp_path / "cache", renew=True).ids) == b"other words"


def test_a_token_file_that_changed_is_told(text, tmp_path):
    prepare(text, tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / "tokens.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="tokens.bin: changed since it was written"):
        prepare(text, tmp_path / "cache")
    with pytest.raises(ValueError, match="no readable token file"):
        open_tokens(tmp_path)


def test_unknown_characters_are_named_and_nothing_is_left(text, tmp_path):
    text.write_text("one – two", "utf-8")
    with pytest.raises(ValueError, match="character '–' at 4 of 'one – two'"):
        prepare(text, tmp_path / "cache", Inputs("characters", characters=" noetwi"))
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("empty.txt", b"", "empty.txt: the file is empty"),
        ("broken.zip", b"PK nothing", "broken.zip: cannot be unpacked"),
        ("a.jsonl", b'{"text": 3}', "a.jsonl, line 1: text is 3; expected text"),
        ("b.jsonl", b'{"text": "\\ud800"}', "b.jsonl, line 1: no text"),
    ],
)
def test_bad_files(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / name, tmp_path / "cache")


def test_nothing_left_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match="text8: no text is left"):
        prepare(text, tmp_path / "cache", Inputs("characters", language="he"))
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n', "utf-8")
    with pytest.raises(ValueError, match="a.jsonl: no text is left"):
        prepare(tmp_path / "a.jsonl", tmp_path / "cache")


def test_bad_settings(tmp_path):
    with pytest.raises(ValueError, match="which is no file and no folder"):
        prepare(tmp_path / "absent", tmp_path / "cache")
    with pytest.raises(ValueError, match="kind is 'words'"):
        Inputs("words")
    with pytest.raises(ValueError, match="leave out language"):
        Inputs("bytes", language="en")


def test_splits_are_90_5_5_and_together_the_text(tmp_path):
    file = tmp_path / "long.txt"
    file.write_bytes(bytes(range(97, 122)) * 41)  # 1025
    found = prepare(file, tmp_path / "cache")
    parts = [found.split(name) for name in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [923, 51, 51]
    assert bytes(np.concatenate(parts)) == file.read_bytes()
    assert bytes(found.split("test", before=1)) == file.read_bytes()[-52:]
    with pytest.raises(ValueError, match="split is 'dev'"):
        found.split("dev")


def test_a_text_too_short_to_split_is_refused(tmp_path):
    (tmp_path / "a").write_text("short", "utf-8")
    with pytest.raises(ValueError, match="split test of 5 tokens is empty"):
        prepare(tmp_path / "a", tmp_path / "cache").split("test")


def test_wikipedia_in_hebrew(tmp_path):
    found = prepare(shared_path("data", "text", "hewiki.txt"), tmp_path, Inputs("characters", language="he"))
    assert found.vocabulary.size == 28 and found.vocabulary.characters[0] == " "
