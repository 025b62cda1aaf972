"""Sliding windows score every character once, from enough before it; bits and shorten factor follow."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from laval.data import CyclicShifts, Inputs, prepare
from laval.evaluate.sliding import read_characters, sliding
from laval.models import ShortenedConfig, ShortenedForCausalLM

PAPER = {"width": 16, "feed_forward": 24, "heads": 2}
SPACE = {"name": "tokens", "tokens": [0]}


def small(plan="1@1 1@3 1@1", **rule):
    levels = {"rule": rule} if rule else ()
    return ShortenedForCausalLM(ShortenedConfig(plan, levels, PAPER, vocab_size=20)).double()


def naive(model, ids, length, stride, first=None):
    """Nats one character at a time, each from the window that is the first to hold it."""
    nats, inputs, end = [], len(ids) - 1, 0
    while end < inputs:
        seen, end = end, min(end + stride if end else length, inputs)
        start = max(0, end - length)
        window = torch.tensor(ids[start:end])
        if first is not None:
            window[0] = first
        scores = model(window[None], use_cache=False).logits[0]
        nats += [F.cross_entropy(scores[i - start], torch.tensor(ids[i + 1])).item() for i in range(seen, end)]
    return torch.tensor(nats, dtype=torch.float64)


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 40))
def test_every_input_is_scored_once_from_enough_before_it(inputs, length, stride):
    length, stride = max(length, stride), min(length, stride)
    found = sliding(inputs, length, stride)
    scored = [place for window in found for place in range(window.end - window.scored, window.end)]
    assert scored == list(range(inputs))
    for number, window in enumerate(found):
        assert 0 <= window.start <= window.end - window.scored and window.end - window.start == min(length, inputs)
        assert number == 0 or window.scored <= stride


def test_the_published_windows_score_all_of_text8():
    found = sliding(5_000_000, 2048, 512)
    assert sum(window.scored for window in found) == 5_000_000
    assert found[1].start == 512 and {window.scored for window in found[1:-1]} == {512}


@pytest.mark.parametrize("first", [None, 0])
@pytest.mark.parametrize(("length", "stride"), [(12, 4), (12, 12), (60, 5), (5, 1)])
@torch.no_grad()
def test_nats_as_the_naive_twin(length, stride, first):
    model = small(**SPACE).eval()
    ids = np.random.randint(20, size=47)
    found = read_characters(model, ids, length, stride, batch=3, first=first, progress=False)
    torch.testing.assert_close(found.nats, naive(model, ids.tolist(), length, stride, first), rtol=0, atol=1e-9)


def test_bits_and_shorten_factor():
    model = small(**SPACE).train()
    ids = np.random.randint(5, size=80, dtype=np.uint8)
    found = read_characters(model, ids, 16, 4, widths=np.full(20, 2), progress=False)
    assert model.training
    assert found.bits_per_character == pytest.approx(float(found.nats.mean()) / math.log(2))
    assert found.bits_per_byte == pytest.approx(found.bits_per_character / 2) and found.bytes == 158
    assert torch.equal(found.ends, torch.from_numpy(ids[:-1] == 0))
    assert found.shorten_factor == pytest.approx(79 / int((ids[:-1] == 0).sum()))


def test_a_model_without_levels_shortens_nothing():
    found = read_characters(small("2@1"), np.arange(20), 8, 4, progress=False)
    assert found.ends is None and found.shorten_factor == 1 and found.bits_per_byte is None
    nothing = read_characters(small(**SPACE), np.arange(1, 20), 8, 4, progress=False)
    assert nothing.shorten_factor == math.inf


def test_a_file_from_rolls_to_bits(tmp_path):
    file = tmp_path / "text8"
    file.write_text(" the nozzle narrows in the middle" * 40, "utf-8")
    tokens = prepare(file, tmp_path / "cache", Inputs("characters"))
    model = small(**SPACE)
    test = tokens.split("test", before=1)
    before = read_characters(model, test, 16, 4, widths=tokens.vocabulary.widths, progress=False)
    assert len(before.nats) == before.bytes == len(tokens) * 5 // 100
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for ids, targets in islice(CyclicShifts(tokens.split("train"), 16, 8).since(), 30):
        optimizer.zero_grad()
        F.cross_entropy(model(ids, use_cache=False).logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    after = read_characters(model, test, 16, 4, progress=False)
    assert after.bits_per_character < 0.8 * before.bits_per_character


def test_wrong_input():
    with pytest.raises(ValueError, match="stride is 9, length 8"):
        read_characters(small(), np.arange(20), 8, 9)
    with pytest.raises(ValueError, match="ids holds 1 tokens"):
        read_characters(small(), np.arange(1))
