"""What holds for every forward, for all families and methods; most of the matrix is slow, a fair part is not."""

from __future__ import annotations

import pytest

from tests.invariants import harness, skipping
from tests.invariants.subjects import EVERY_FAMILY, EVERY_METHOD, METHODS, parameters

SKIPPING = tuple(method for method in METHODS if method != "dense")
STRAIGHT = ("hard_mask", "no_kv", "ablated")


@pytest.mark.parametrize("check", harness.FORWARD, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", parameters(quick=EVERY_FAMILY | EVERY_METHOD))
def test_forward(check, subject):
    check(subject)


@pytest.mark.parametrize("check", skipping.FORWARD, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", parameters(SKIPPING, quick=EVERY_FAMILY | EVERY_METHOD))
def test_skipping(check, subject):
    check(subject)


@pytest.mark.parametrize("subject", parameters(STRAIGHT, quick=EVERY_FAMILY))
def test_straight_through(subject):
    skipping.straight_through_is_the_gradient_of_a_mixture(subject)
