"""Segments, reduce and upsample: ragged rows, whole or in pieces, against loops, with gradients, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from laval.ops import naive, reduce, upsample
from laval.ops.segments import cut, gather_left, scatter_back

ATOL = 1e-12
QUICK = settings(deadline=None, max_examples=40)


@st.composite
def ragged(draw):
    """x [B, T, 3], bits [B, T] and lengths [B]; filler is NaN-free garbage with bits set."""
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    lengths = torch.tensor(draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch)))
    rows = st.lists(st.booleans(), min_size=length, max_size=length)
    bits = torch.tensor(draw(st.lists(rows, min_size=batch, max_size=batch)))
    torch.manual_seed(draw(st.integers(0, 5)))
    return torch.randn(batch, length, 3, dtype=torch.float64), bits, lengths


def in_two(function, x, bits, lengths, at):
    """The closed segments of each row when the text comes in two calls, the second with the carry of the first."""
    first = torch.minimum(lengths, torch.tensor(at))
    head, carry = function(x[:, :at], cut(bits[:, :at], first), None)
    tail, _ = function(x[:, at:], cut(bits[:, at:], lengths - first), carry)
    counts = cut(bits[:, :at], first).counts
    return [torch.cat((a[:n], b)) for a, b, n in zip(head, tail, counts, strict=True)]


REDUCERS = {
    "mean": (reduce.mean, naive.mean),
    "max": (reduce.maximum, naive.maximum),
    "windows": (
        lambda x, segments, carry: reduce.windows(x, segments, 3, carry),
        lambda x, bits: naive.windows(x, bits, 3),
    ),
}


def check_gradient(ours, theirs, x):
    weight = torch.randn_like(ours)
    options = {"retain_graph": True}
    found, expected = (torch.autograd.grad((y * weight).sum() + 0 * x.sum(), x, **options)[0] for y in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)


@QUICK
@given(ragged())
def test_cut_is_what_counting_gives(case):
    _, bits, lengths = case
    found = cut(bits, lengths)
    for row, length in enumerate(lengths.tolist()):
        closed, still_open = naive.segments_of(bits[row, :length])
        of = {token: number for number, tokens in enumerate([*closed, still_open]) for token in tokens}
        assert found.of[row, :length].tolist() == [of[token] for token in range(length)]
        assert (found.of[row, length:] == found.slots + 1).all()
        assert found.ends[row, : len(closed)].tolist() == [tokens[-1] for tokens in closed]
        assert found.counts[row] == len(closed)
    assert found.of.dtype == found.closed.dtype == found.ends.dtype == torch.int64


def test_counts_are_exact_beyond_what_half_precision_counts():
    assert cut(torch.ones(1, 5000, dtype=torch.bool)).closed[0, -1] == 5000
    x = torch.ones(1, 5000, 1, dtype=torch.bfloat16)
    bits = torch.zeros(1, 5000, dtype=torch.bool)
    bits[0, -1] = True
    assert reduce.mean(x, cut(bits))[0].item() == 1


@pytest.mark.parametrize("name", REDUCERS)
@QUICK
@given(case=ragged())
def test_reduce_equals_its_loop(name, case):
    ours, theirs = REDUCERS[name]
    x, bits, lengths = case
    x.requires_grad_()
    found, _ = ours(x, cut(bits, lengths), None)
    for row, length in enumerate(lengths.tolist()):
        expected = theirs(x[row, :length], bits[row, :length])
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=ATOL, rtol=0)
        check_gradient(found[row, : len(expected)], expected, x)


@pytest.mark.parametrize("name", REDUCERS)
@QUICK
@given(case=ragged(), data=st.data())
def test_reduce_in_two_pieces_equals_its_loop(name, case, data):
    ours, theirs = REDUCERS[name]
    x, bits, lengths = case
    found = in_two(ours, x, bits, lengths, data.draw(st.integers(0, x.shape[1])))
    for row, length in enumerate(lengths.tolist()):
        expected = theirs(x[row, :length], bits[row, :length])
        torch.testing.assert_close(found[row][: len(expected)], expected, atol=ATOL, rtol=0)


@QUICK
@given(ragged())
def test_last_equals_its_loop(case):
    x, bits, lengths = case
    found = reduce.last(x, cut(bits, lengths))
    for row, length in enumerate(lengths.tolist()):
        expected = naive.last(x[row, :length], bits[row, :length])
        assert torch.equal(found[row, : len(expected)], expected)


@QUICK
@given(ragged())
def test_the_gradient_by_the_commits_is_that_of_the_dense_matrix(case):
    x, bits, lengths = case
    soft = bits.double().requires_grad_()
    found, _ = reduce.mean(x, cut(bits, lengths), soft=soft)
    for row, length in enumerate(lengths.tolist()):
        expected = naive.dense_mean(x[row, :length], soft[row, :length])
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=ATOL, rtol=0)
        if len(expected):
            check_gradient(found[row, : len(expected)], expected, soft)


@QUICK
@given(ragged())
def test_left_and_back(case):
    x, bits, _ = case
    left = gather_left(x, bits)
    for row in range(len(x)):
        assert torch.equal(left[row, : bits[row].sum()], x[row][bits[row]])
    assert torch.equal(scatter_back(left, bits), x * bits[..., None])


@QUICK
@given(ragged())
def test_repeat_equals_its_loop(case):
    x, bits, _ = case
    closed = cut(bits).closed
    rows = torch.randn(len(x), 1 + int(closed.max()), 3, dtype=torch.float64, requires_grad=True)
    found = upsample.repeat(rows, closed)
    for row in range(len(x)):
        expected = naive.repeat(rows[row, 1:], bits[row], rows[row, 0])
        assert torch.equal(found[row], expected)
        check_gradient(found[row], expected, rows)


@QUICK
@given(ragged(), st.integers(-1, 4))
def test_since_equals_its_loop(case, before):
    _, bits, _ = case
    found = upsample.since(bits, torch.full((len(bits),), before))
    for row, expected in enumerate(map(naive.since, bits)):
        first = bits[row].tolist().index(True) if bits[row].any() else len(expected)  # from there on the same
        assert found[row].tolist() == [before + 1 + t for t in range(first)] + expected[first:]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_by_position_is_the_published_reshape_for_fixed_segments(k):
    rows, maps = torch.randn(2, 4, 5).double(), torch.randn(k * 5, 5).double()
    expected = F.linear(rows, maps).unflatten(-1, (k, 5)).flatten(1, 2)
    index = torch.arange(4 * k)[None].repeat(2, 1) // k + 1
    projected = F.linear(torch.cat((rows[:, :1] * 0, rows), 1), maps).unflatten(-1, (k, 5))
    found = upsample.by_position(projected, index, torch.arange(4 * k).repeat(2, 1) % k)
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)


@QUICK
@given(st.integers(0, 70), st.integers(0, 3))
def test_smooth_equals_its_loop(length, seed):
    torch.manual_seed(seed)
    x = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    share = torch.rand(2, length, dtype=torch.float64)
    share[share > 0.9] = 1
    share = share.requires_grad_()
    carried = torch.randn(2, 3, dtype=torch.float64)
    found = upsample.smooth(x, share, carried)
    for row in range(2):
        expected = naive.smooth(x[row], share[row], carried[row])
        torch.testing.assert_close(found[row], expected, atol=1e-10, rtol=0)
        check_gradient(found[row], expected, x)
