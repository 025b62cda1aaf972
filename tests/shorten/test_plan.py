"""Plans, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from laval.shorten.plan import check_depth, read_plan


@pytest.mark.parametrize(
    ("text", "layers", "factors", "depth", "steps"),
    [
        ("12@1", (12,), (1,), 12, ()),
        ("4@1 8@3 4@1", (4, 8), (1, 3), 16, (3,)),
        ("2@1 1@2 4@4 1@2 2@1", (2, 1, 4), (1, 2, 4), 10, (2, 2)),
        ("0@1 8@3 0@1", (0, 8), (1, 3), 8, (3,)),
        ("2@1 8@5.7 2@1", (2, 8), (1, 5.7), 12, (5.7,)),
    ],
)
def test_plans_are_read_and_written(text, layers, factors, depth, steps):
    plan = read_plan(text)
    assert (plan.layers, plan.factors, plan.depth, plan.steps) == (layers, factors, depth, steps)
    assert str(plan) == text and read_plan(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected layers@factor"),
        ("4@1 8x3 4@1", "expected layers@factor"),
        ("4@1 -8@3 4@1", "expected layers@factor"),
        ("4@1 8@3", "no palindrome"),
        ("4@1 8@3 3@1", "no palindrome"),
        ("4@1 4@1", "has no middle"),
        ("4@2 8@4 4@2", "starts at factor 2"),
        ("4@1 2@2 8@3 2@2 4@1", "2 does not divide 3"),
        ("4@1 2@3 8@3 2@3 4@1", "from factor 3 to 3"),
        ("4@1 0@3 4@1", "no layer in the middle"),
    ],
)
def test_wrong_plans_are_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_plan(text)


def test_numbers_must_add_up_to_the_depth():
    check_depth(read_plan("4@1 22@3 4@1"), 30)
    with pytest.raises(ValueError, match="16 layers and the base model 30.*'4@1 22@3 4@1'"):
        check_depth(read_plan("4@1 8@3 4@1"), 30)
    with pytest.raises(ValueError, match="'1@1 2@3 1@1'"):
        check_depth(read_plan("4@1 8@3 4@1"), 4)
