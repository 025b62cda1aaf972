"""Plans follow from costs and acceptance; guesses that cost nothing are counted without being tried."""

from __future__ import annotations

import pytest

from laval.speculate.control import Controller, Plan, expected_tokens
from laval.speculate.costs import STALE, Costs
from laval.speculate.lookup import Habits, Lookup
from laval.speculate.rates import Rates, Trust


def controller(one=1.0, slope=0.1, drafts=()) -> Controller:
    """As after some texts: every pass and draft timed, a pass over one row just now."""
    made = Controller()
    for rows in (1, 2, 4, 8, 16):
        for _ in range(6):
            made.costs.note_pass(rows, one * (1 + slope * (rows - 1)))
    for name, seconds in drafts:
        for _ in range(5):
            made.costs.note_draft(name, seconds)
    made.costs.note_pass(1, one)
    return made


def draft_and_tokens(plan: Plan) -> tuple[str, int]:
    return plan.draft, plan.tokens


def test_expected_tokens_by_hand():
    assert expected_tokens([]) == 1
    assert expected_tokens([0.5, 0.5]) == pytest.approx(1 + 0.5 + 0.25)


def test_sure_guesses_go_far_doubtful_ones_nowhere():
    plan = controller().plan([0.99] * 15, {}, left=100)
    assert draft_and_tokens(plan) == ("lookup", 15) and plan.gain == pytest.approx(5.94, abs=0.01)
    assert controller().plan([0.6] * 15, {}, left=100).tokens in (3, 7)
    assert controller().plan([0.1] * 15, {}, left=100) == Plan()
    assert controller(slope=1.0).plan([0.9] * 15, {}, left=100) == Plan()


def test_nothing_is_proposed_beyond_the_end():
    assert controller().plan([0.99] * 15, {}, left=4).tokens == 3
    assert controller().plan([0.99] * 15, {}, left=1) == Plan()


def test_a_draft_that_costs_too_much_is_never_tried():
    assert controller(drafts=[("skip", 0.9)]).plan([], {"skip": 0.9}, left=100) == Plan()
    assert controller(drafts=[("skip", 0.9)]).plan([], {"skip": 0.9}, left=100, must=True).draft == "skip"


def test_a_cheap_draft_is_tried_and_dropped_when_it_is_wrong():
    made = controller(drafts=[("exit", 0.1)])
    tried = 0
    while (plan := made.plan([], {"exit": 0.1}, left=100)).draft == "exit":
        made.learn(tuple(f"exit {min(i, 4)}" for i in range(1, plan.tokens + 1)), accepted=0)
        tried += 1
        assert tried < 15
    assert tried >= 1


def test_without_a_measured_pass_there_is_no_plan():
    assert Controller().plan([0.99] * 15, {}, left=100) == Plan()


def test_costs_are_ratios_between_and_beyond_what_was_measured():
    costs = Costs()
    for rows, seconds in ((1, 2.0), (4, 3.2)):
        for _ in range(4):
            costs.note_pass(rows, seconds)
    assert costs.of_pass(1) == 1 and costs.of_pass(2) == pytest.approx(1.2) and costs.of_pass(3) == pytest.approx(1.4)
    assert costs.of_pass(6) == pytest.approx(1.8)
    costs.note_pass(2, 18.0)  # the first of its kind does not count
    costs.note_pass(2, 3.6)  # and one may be an accident
    assert costs.of_pass(2) == pytest.approx((1.8 + 1.2) / 2)
    costs.note_pass(2, 6.0)
    assert costs.of_pass(2) == pytest.approx(1.6)  # what more rows are known to take


def test_a_machine_that_slows_down_changes_no_cost():
    costs, slower = Costs(), 1.0
    for _ in range(40):
        slower *= 1.05
        costs.note_pass(1, slower)
        costs.note_pass(4, 1.5 * slower)
    assert costs.of_pass(4) == pytest.approx(1.5, rel=0.2)


def test_a_pass_over_one_row_is_due_after_a_while():
    made = controller()
    for _ in range(STALE):
        assert made.plan([0.99] * 15, {}, left=100).draft == "lookup"
        made.costs.note_pass(16, 2.5)
    assert made.plan([0.99] * 15, {}, left=100) == Plan()
    made.costs.note_pass(1, 1.0)
    assert made.plan([0.99] * 15, {}, left=100).draft == "lookup"


def test_promises_that_are_not_kept_are_believed_less():
    trust = Trust()
    for _ in range(20):
        trust.note("lookup", 2.0, 0.5)
    assert 0.25 < trust.of("lookup") < 0.4 and trust.of("exit") == 1
    trust.note("exit", 0.5, 3.0)
    assert trust.of("exit") == 1
    for _ in range(20):
        trust.weaken()
    assert trust.of("lookup") > 0.95


def test_rates_start_from_the_assumption_and_follow_the_evidence():
    rates = Rates(0.4)
    assert rates.rate("x") == pytest.approx(0.4)
    for _ in range(100):
        rates.note("x", True)
    assert rates.rate("x") > 0.95
    for _ in range(100):
        rates.note("x", False)
    assert rates.rate("x") < 0.2


def lookup(*prompt: int) -> Lookup:
    made = Lookup(Habits(), Rates(0.9))
    made.read(list(prompt))
    return made


def test_what_followed_the_same_words_is_proposed():
    assert lookup(1, 2, 3, 4, 5, 9, 1, 2, 3).propose(3)[0].tokens == (4, 5, 9)
    assert lookup(1, 2, 3).propose(3)[0].tokens == ()


def test_a_repetition_reads_itself():
    assert lookup(7, 8, 7, 8, 7).propose(5)[0].tokens == (8, 7, 8, 7, 8)


def test_habits_remain_from_text_to_text():
    habits, rates = Habits(), Rates(0.9)
    first = Lookup(habits, rates)
    first.read([1])
    for token in (2, 3, 4):
        first.add(token)
    second = Lookup(habits, rates)
    second.read([9, 1, 2])
    assert second.propose(2)[0].tokens == (3, 4)


def test_guesses_are_counted_whether_or_not_anyone_asked():
    made = lookup(1, 2, 3, 4, 1, 2, 3)
    made.add(4)
    assert made.rates.right == {"lookup 3": 1.0}
    made = lookup(1, 2, 3, 4, 1, 2, 3)
    made.add(5)
    assert made.rates.right == {"lookup 3": 0.0}


def test_the_vote_follows_the_majority():
    habits = Habits()
    for token in (5, 5, 6, 5):
        habits.add([1], token)
    assert habits.find([1]) == (5, "memory 1:2")
    for _ in range(3):
        habits.add([1], 6)
    assert habits.find([1])[0] == 6
