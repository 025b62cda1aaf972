"""Rolled streams: every epoch reads nearly all of the text once, and any step can be had again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laval.data import CyclicShifts


def naive(tokens, length, batch, seed, step):
    """One row at a time: roll the stream, cut it, take the chunk."""
    size = len(tokens) // batch
    steps = (size - 1) // length
    random = np.random.default_rng((seed, step // steps))
    starts, order = random.integers(size, size=batch), random.permutation(steps)
    rows = []
    for row in range(batch):
        stream = tokens[row * size : (row + 1) * size].tolist()
        rolled = stream[starts[row] :] + stream[: starts[row]]
        at = int(order[step % steps]) * length
        rows.append(rolled[at : at + length + 1])
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 40), st.integers(0, 3), st.integers(0, 30))
def test_as_the_naive_twin(length, batch, more, seed, step):
    tokens = np.arange(batch * (length + 1) + more, dtype=np.uint16)
    for found, wanted in zip(
        CyclicShifts(tokens, length, batch, seed).at(step), naive(tokens, length, batch, seed, step), strict=True
    ):
        assert torch.equal(found, wanted)


def test_an_epoch_predicts_no_token_twice_and_epochs_differ():
    shifts = CyclicShifts(np.arange(203), 10, 2)
    epochs = [torch.cat([shifts.at(epoch * shifts.steps + i)[1] for i in range(shifts.steps)]) for epoch in range(2)]
    for seen in epochs:
        assert seen.numel() == seen.unique().numel() == 200
    assert not torch.equal(*epochs)


def test_going_on_is_the_same_as_never_stopping():
    shifts = CyclicShifts(np.arange(100), 7, 3, seed=5)
    steady, later = shifts.since(), CyclicShifts(np.arange(100), 7, 3, seed=5).since(9)
    for _ in range(9):
        next(steady)
    for _ in range(9):
        assert all(map(torch.equal, next(steady), next(later)))


def test_processes_share_the_rows_and_the_first_id_can_be_set():
    shifts = CyclicShifts(np.arange(100) + 1, 7, 4, first=0)
    whole, targets = shifts.at(2)
    shares = [shifts.at(2, rank, 2)[0] for rank in range(2)]
    assert torch.equal(torch.stack(shares, 1).flatten(0, 1), whole)
    assert not whole[:, 0].any() and torch.equal(whole[:, 1:], targets[:, :-1])


def test_too_short_a_text_is_refused():
    with pytest.raises(ValueError, match="19 tokens in 2 streams give no chunk of 9 .* expected at least 20"):
        CyclicShifts(np.arange(19), 9, 2)
    with pytest.raises(ValueError, match="length is 0, batch 2"):
        CyclicShifts(np.arange(19), 0, 2)
