"""Predicted gains: known sizes, limits that can be told without a computer, refusals."""

from __future__ import annotations

import pytest

from laval.speculate.predict import SHAPES, Machine, dense_load, draft_load, predicted_gain

MEMORY = Machine(flops=1e30, bandwidth=1e12)  # arithmetic for free
EIGHT = SHAPES["Llama 3.1 8B"]


@pytest.mark.parametrize("name, billions", [("Llama 3.2 1B", 1.24), ("Llama 3.1 8B", 8.03), ("Llama 3.1 70B", 70.55)])
def test_shapes_have_the_published_sizes(name, billions):
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_free_draft_that_is_always_right_gives_all_its_tokens():
    assert predicted_gain(EIGHT, 1.0, MEMORY).gain == pytest.approx(16)
    assert predicted_gain(EIGHT, 0.0, MEMORY).gain == 1


def test_a_free_draft_by_hand():
    """Where arithmetic costs nothing every proposed token helps: 1 + a + a^2 + ..."""
    assert predicted_gain(EIGHT, 0.5, MEMORY).gain == pytest.approx(2, rel=1e-3)


def test_a_draft_as_deep_as_the_model_gains_nothing():
    assert predicted_gain(EIGHT, 0.99, MEMORY, depth=32).tokens == 0


def test_shallower_and_better_drafts_gain_more():
    gains = [predicted_gain(EIGHT, 0.8, MEMORY, depth=depth).gain for depth in (28, 24, 20, 16)]
    assert gains == sorted(gains) and gains[0] < gains[-1]
    gains = [predicted_gain(EIGHT, a, MEMORY, exit_layers=8).gain for a in (0.3, 0.5, 0.7, 0.9)]
    assert gains == sorted(gains) and gains[0] < gains[-1]


def test_arithmetic_limits_the_rows():
    slow = Machine(flops=2e12, bandwidth=1e12)
    assert predicted_gain(EIGHT, 0.9, slow).tokens < predicted_gain(EIGHT, 0.9, MEMORY).tokens


def test_a_pass_reads_the_weights_once_and_a_quarter_exit_reads_a_quarter():
    one, eight = dense_load(EIGHT, 1, 0, 2), dense_load(EIGHT, 8, 0, 2)
    assert eight.bytes == one.bytes and eight.flops == pytest.approx(8 * one.flops)
    layers = one.bytes - 2 * EIGHT.head_weights
    assert draft_load(EIGHT, None, 8, 0, 2).bytes == pytest.approx(layers / 4 + 2 * EIGHT.head_weights)


@pytest.mark.parametrize(
    "options", [{"acceptance": 1.1}, {"depth": 8}, {"exit_layers": 32}, {"depth": 24, "exit_layers": 8}]
)
def test_impossible_questions_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        predicted_gain(EIGHT, **{"acceptance": 0.5, **options}, peaks=MEMORY)
