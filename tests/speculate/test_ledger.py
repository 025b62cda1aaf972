"""The floor: on a machine that is only imagined, no draft can lose more than the ledger allows."""

from __future__ import annotations

import random

import pytest

from laval.speculate.control import Controller
from laval.speculate.ledger import ROOM, SHARE, Ledger
from laval.speculate.proposal import source_of

TEXT, TEXTS = 96, 40


def write(controller: Controller, promised: float, true: float, share: float, slope: float, chance) -> float:
    """Passes over one row that a text takes: lookup guesses promise one rate and have another, a draft costs share."""
    controller.start()
    tokens, spent = 0, 0.0
    while tokens < TEXT:
        plan = controller.plan([promised] * 15, {"exit": share}, TEXT - tokens)
        right = 0
        while right < plan.tokens and chance.random() < true:
            right += 1
        drafting = 0.0 if plan.draft in ("lookup", "none") else plan.tokens * share
        passes = drafting + (1 + slope * plan.tokens if plan.tokens else 1)
        controller.costs.note_pass(plan.tokens + 1, passes - drafting)
        if drafting:
            controller.costs.note_draft("exit", share)
            controller.learn(tuple(source_of("exit", i) for i in range(1, plan.tokens + 1)), right)
        controller.settle(plan, right + 1, passes, plain=not plan.tokens)
        tokens, spent = tokens + right + 1, spent + passes
    return spent / tokens


def ratio(promised: float, true: float, share=0.4, slope=0.15) -> float:
    """Plain decoding's time over that of all texts."""
    controller, chance = Controller(), random.Random(0)
    return TEXTS / sum(write(controller, promised, true, share, slope, chance) for _ in range(TEXTS))


@pytest.mark.parametrize("true", [0.0, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("promised", [0.2, 0.5, 0.7, 0.95])
def test_guesses_worse_than_they_promise_cost_little(promised, true):
    assert ratio(promised, true) > 1 / (1 + SHARE + (ROOM + 2.5) / TEXT / TEXTS) > 0.98


def test_guesses_as_good_as_they_promise_pay():
    assert ratio(0.7, 0.7) > 1.5
    assert ratio(0.95, 0.95) > 3


def test_a_draft_that_costs_next_to_nothing_pays_when_it_is_right():
    assert ratio(0.0, 0.75, share=0.07) > 1.3


def test_losses_close_it_and_tokens_open_it_again():
    ledger = Ledger()
    assert ledger.open
    ledger.note(1, ROOM + 2)
    assert not ledger.open
    for _ in range(round(1.1 / SHARE)):
        ledger.note(1, 1)
    assert ledger.open


def test_gains_are_not_saved_up():
    ledger = Ledger()
    ledger.note(1000, 1)
    assert ledger.left == ROOM
