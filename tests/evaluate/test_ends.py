"""Precision and recall of segment ends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laval.evaluate.ends import agreement


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1))
def test_as_counted_one_by_one(places):
    found, given_, real = torch.tensor(places).T
    sets = [{i for i, place in enumerate(places) if place[which] and place[2]} for which in (0, 1)]
    seen = agreement(found, given_, real)
    both = len(sets[0] & sets[1])
    assert seen.precision == (both / len(sets[0]) if sets[0] else None)
    assert seen.recall == (both / len(sets[1]) if sets[1] else None)
    if both:
        assert seen.f1 == pytest.approx(2 / (1 / seen.precision + 1 / seen.recall))


def test_nothing_found_has_no_precision():
    seen = agreement([0, 0, 0], [0, 1, 0])
    assert (seen.precision, seen.recall, seen.f1) == (None, 0.0, 0.0)
    assert agreement([0], [0]).f1 is None


def test_wrong_input():
    with pytest.raises(ValueError, match=r"found has the shape \[2\], given \[3\]"):
        agreement([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="given holds numbers that are neither 0 nor 1"):
        agreement([0.0, 1.0], [0.5, float("nan")])
