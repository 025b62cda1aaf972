from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laval.report.pieces import _ends, naive_ends, token_pieces
from tests.report.traces import byte_fallback, byte_level

byte_level, byte_fallback = cache(byte_level), cache(byte_fallback)
NUMBERS = st.lists(st.integers(0, 261), max_size=24)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
@example("the flow 😀👩‍🔬 narrows\n\n\tnaïve ")
def test_pieces_of_any_text_join_to_it(text):
    ids = byte_level()(text)["input_ids"]
    assert "".join(token_pieces(byte_level(), ids)) == byte_level().decode(ids) == text


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@settings(max_examples=60, deadline=None)
@given(ids=NUMBERS)
def test_pieces_of_any_ids_join_and_equal_the_naive_twin(make, ids):
    tokenizer = make()
    full = tokenizer.decode(ids)
    pieces = token_pieces(tokenizer, ids)
    assert len(pieces) == len(ids) and "".join(pieces) == full
    fast = _ends(tokenizer, ids, full)
    assert fast is None or fast == naive_ends(tokenizer, ids, full)


def test_a_character_belongs_to_the_token_that_completes_it():
    pieces = token_pieces(byte_level(), byte_level()("x→y")["input_ids"])
    assert pieces == ["x", "", "", "→", "y"]


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_the_window_holds_for_text_with_split_characters(make):
    ids = make()("the flow→ the é. flows 😀", add_special_tokens=False)["input_ids"]
    full = make().decode(ids)
    assert _ends(make(), ids, full) == naive_ends(make(), ids, full)


def test_byte_fallback_keeps_spaces_and_completes_characters():
    tokenizer = byte_fallback()
    ids = tokenizer.convert_tokens_to_ids(["▁the", "▁flow", "s", "<0xC3>", "<0xA9>", "▁the", "."])
    assert token_pieces(tokenizer, ids) == ["the", " flow", "s", "", "é", " the", "."]


def test_no_ids_no_pieces():
    assert token_pieces(byte_level(), []) == []


class Rewriting:
    """A decoder that rewrites earlier text: it drops the space before a full stop, in any window."""

    def decode(self, ids):
        return "".join(f" {chr(i)}" for i in ids).replace(" .", ".")


def test_a_decoder_that_rewrites_still_round_trips():
    ids = [ord(c) for c in "ab.c."]
    assert "".join(token_pieces(Rewriting(), ids)) == " a b. c."


def test_time_is_linear():
    class Counting:
        work = 0

        def decode(self, ids):
            self.work += len(ids)
            return "".join(chr(i) for i in ids)

    tokenizer = Counting()
    token_pieces(tokenizer, [97] * 2000)
    assert tokenizer.work < 10 * 2000
