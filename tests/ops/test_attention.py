"""Attention of chosen rows: equal to a plain softmax over the visible keys, row by row."""

from __future__ import annotations

import pytest
import torch

from laval.ops import attention
from laval.ops.attention import causal_rows, masked_rows

KEYS = 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 7)


def made(rows: int, heads: int = 6, shared: int = 2):
    torch.manual_seed(0)
    queries = torch.randn(rows, heads, 8, dtype=torch.float64)
    return queries, *torch.randn(2, shared, KEYS, 8, dtype=torch.float64).unbind(0)


def naive(queries, keys, values, visible, scale):
    """One row and head at a time; zeros where nothing is visible."""
    rows, heads, width = queries.shape
    mixed = torch.zeros_like(queries)
    for row in range(rows):
        seen = visible[row]
        for head in range(heads if seen.any() else 0):
            group = head * keys.shape[0] // heads
            weights = (keys[group, seen] @ queries[row, head] * scale).softmax(0)
            mixed[row, head] = weights @ values[group, seen]
    return mixed.view(rows, heads * width)


@pytest.mark.parametrize(("heads", "shared"), [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("tokens", [[], [0], [39], [3, 4, 30], list(range(KEYS)), list(range(0, 40, 3))])
def test_causal_rows(tokens, heads, shared):
    queries, keys, values = made(len(tokens), heads, shared)
    tokens = torch.tensor(tokens, dtype=torch.long)
    visible = torch.arange(KEYS) <= tokens[:, None]
    found = causal_rows(queries, keys, values, tokens, 0.3)
    torch.testing.assert_close(found, naive(queries, keys, values, visible, 0.3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("rows", [0, 1, 7, 23])
def test_masked_rows(rows, share):
    queries, keys, values = made(rows)
    visible = torch.rand(rows, KEYS) < share
    found = masked_rows(queries, keys, values, visible, 0.3)
    torch.testing.assert_close(found, naive(queries, keys, values, visible, 0.3), rtol=0, atol=1e-12)


def test_windows_and_rows_that_see_nothing_among_others():
    queries, keys, values = made(20)
    places, tokens = torch.arange(KEYS), torch.arange(5, 25)[:, None]
    visible = (places <= tokens) & (places > tokens - 4)
    visible[[0, 8, 9]] = False
    found = masked_rows(queries, keys, values, visible, 0.3)
    torch.testing.assert_close(found, naive(queries, keys, values, visible, 0.3), rtol=0, atol=1e-12)
    assert not found[[0, 8, 9]].any()


def test_nobody_reads_the_future(monkeypatch):
    """Not even masked: keys after the last row of a block may be anything."""
    queries, keys, values = made(5)
    tokens = torch.tensor([0, 2, 3, 9, 12])
    expected = causal_rows(queries, keys, values, tokens, 0.3)
    keys[:, 13:], values[:, 13:] = torch.nan, torch.nan
    assert torch.equal(causal_rows(queries, keys, values, tokens, 0.3), expected)
