"""Relative attention against its loop: whole and ragged, with gradients, in float64."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laval.ops import naive
from laval.ops.relative import relative_attention, sinusoids

QUICK = settings(deadline=None, max_examples=25)
HEADS, WIDTH = 2, 4


def drawn(batch, rows, slots, reach):
    shapes = [(batch, HEADS, rows, WIDTH), *[(batch, HEADS, slots, WIDTH)] * 2, (HEADS, reach, WIDTH)]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    biases = tuple(torch.randn(HEADS, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return *tensors, biases


def looped(q, k, v, table, biases, distance):
    content, position = biases
    rows = [
        [
            naive.relative_attention(q[b, h], k[b, h], v[b, h], table[h], content[h], position[h], distance[b])
            for h in range(HEADS)
        ]
        for b in range(len(q))
    ]
    return torch.stack([torch.stack(heads) for heads in rows])


def check(found, expected, inputs):
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weight = torch.randn_like(found)
    tensors = [*inputs[:4], *inputs[4]]
    ours, theirs = (
        torch.autograd.grad((y * weight).sum() + sum(0 * t.sum() for t in tensors), tensors) for y in (found, expected)
    )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-11, rtol=0)


@QUICK
@given(st.integers(1, 2), st.integers(1, 7))
def test_own_rows(batch, length):
    inputs = drawn(batch, length, length, length)
    places = torch.arange(length)
    distance = (places[:, None] - places).expand(batch, -1, -1)
    check(relative_attention(*inputs), looped(*inputs, distance), inputs)
    check(relative_attention(*inputs, distance), looped(*inputs, distance), inputs)


@QUICK
@given(st.integers(1, 2), st.integers(1, 4), st.integers(0, 6), st.integers(0, 9))
def test_any_distances(batch, rows, slots, seed):
    inputs = drawn(batch, rows, slots, 5)
    torch.manual_seed(seed)
    distance = torch.randint(-3, 5, (batch, rows, slots))
    check(relative_attention(*inputs, distance), looped(*inputs, distance), inputs)


def test_sinusoids_are_sines_and_cosines_of_falling_rates():
    found = sinusoids(torch.tensor([0, 3]), 4, torch.float64)
    assert found[0].tolist() == [0, 0, 1, 1]
    expected = [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]
    torch.testing.assert_close(found[1].tolist(), expected, atol=1e-8, rtol=0)  # rates are float32
