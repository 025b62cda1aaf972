"""What is drawn is distributed as the dense model says, whatever was proposed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laval.speculate import lossless
from laval.speculate.head import DraftHead
from laval.speculate.keep import save_draft
from laval.speculate.proposal import Proposal
from laval.speculate.verify import Greedy, Sampling, settle_one
from tests.speculate.models import adaptive, plain

DRAWS = 4000
UNLIKELY = 1e-3


def distribution(*weights) -> torch.Tensor:
    return torch.tensor(weights) / sum(weights)


P = distribution(4.0, 3.0, 2.0, 1.0, 0.0)
DRAFTS = {
    "equal": P,
    "flat": distribution(1.0, 1.0, 1.0, 1.0, 1.0),
    "opposite": distribution(0.0, 1.0, 2.0, 3.0, 4.0),
    "narrow": distribution(0.0, 0.0, 1.0, 0.0, 0.0),
}


def counts(draws: list[int], size: int) -> np.ndarray:
    return np.bincount(draws, minlength=size)


def chance(found: np.ndarray, expected: np.ndarray, degrees: int) -> float:
    """Of a chi-square statistic as great as this one."""
    statistic = ((found - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor(degrees / 2.0), torch.tensor(statistic / 2.0)))


def fits(draws: list[int], p: torch.Tensor) -> float:
    """The chance of draws this far from p."""
    found, possible = counts(draws, len(p)), p.numpy() > 0
    assert not found[~possible].any()
    expected = len(draws) * p.double().numpy() / p.double().sum().item()
    return chance(found[possible], expected[possible], possible.sum() - 1)


def alike(table: np.ndarray) -> float:
    """The chance that two rows of counts, drawn from one distribution, differ as much."""
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    return chance(table, expected, table.shape[1] - 1)


@pytest.mark.parametrize("name", DRAFTS)
def test_tokens_drawn_from_another_distribution(name):
    q = DRAFTS[name]
    drafted = torch.multinomial(q, DRAWS, replacement=True).tolist()
    settled = [settle_one(P, draft, q) for draft in drafted]
    assert fits(settled, P) > UNLIKELY
    # no rule can keep more (Leviathan et al. 2023, theorem 3.5)
    kept = np.mean([a == b for a, b in zip(settled, drafted, strict=True)])
    assert kept == pytest.approx(torch.minimum(P, q).sum().item(), abs=0.04)


@pytest.mark.parametrize("token", range(5))
def test_tokens_that_were_not_drawn(token):
    assert fits([settle_one(P, token) for _ in range(DRAWS)], P) > UNLIKELY


def test_the_check_would_notice_a_draft_taken_at_its_word():
    q = DRAFTS["flat"]
    wrong = [token for token in torch.multinomial(q, DRAWS, replacement=True).tolist() if token < 4]
    assert fits(wrong, P) < UNLIKELY


def test_a_chain_of_drawn_tokens_has_the_joint_distribution():
    """Two positions whose second depends on the first, three rows of logits as of one pass."""
    first, second = P[:4], torch.stack([DRAFTS["flat"][:4].roll(i) * torch.arange(1.0, 5) for i in range(4)])
    second = second / second.sum(-1, keepdim=True)
    q = torch.stack([distribution(1.0, 1.0, 1.0, 1.0), distribution(1.0, 2.0, 3.0, 4.0)])
    text, pairs = torch.tensor([[0]]), []
    for _ in range(DRAWS):
        proposed = tuple(int(torch.multinomial(row, 1)) for row in q)
        logits = torch.stack([first, second[proposed[0]], second[proposed[1]]]).log()
        tokens = Sampling().settle(text, logits, Proposal(proposed, ("t", "t"), q)).tokens
        if len(tokens) == 1:
            tokens = (*tokens, int(torch.multinomial(second[tokens[0]], 1)))
        pairs.append(4 * tokens[0] + tokens[1])
    assert fits(pairs, (first[:, None] * second).flatten()) > UNLIKELY


@pytest.fixture(scope="module")
def model():
    return adaptive(max_position_embeddings=256, vocab_size=24)


OPTIONS = {"do_sample": True, "temperature": 0.8, "top_k": 12, "top_p": 0.9, "max_new_tokens": 4, "eos_token_id": None}


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["skip", "exit", "head"])
def test_drafts_of_the_model_leave_its_distribution_alone(model, draft, tmp_path):
    """The last of four sampled tokens, as often as direct sampling gives it."""
    if draft == "head":  # knows three quarters of the vocabulary, and stops where it is not sure
        model.folder = tmp_path
        save_draft(DraftHead(model.backbone, torch.arange(3, 21)), model, tmp_path, dtype=torch.float32)
    ids, draws = torch.tensor([[5, 6, 7, 5, 6]]), 400
    torch.manual_seed(1)
    direct = plain(model, ids.repeat(4 * draws, 1), **OPTIONS)[:, -3:]
    drafted = torch.cat([lossless(model, ids, draft, **OPTIONS).ids[:, -3:] for _ in range(draws)])
    for place in range(3):
        table = np.stack([counts(rows[:, place].tolist(), 24) for rows in (direct, drafted)])
        common = table.sum(0) >= 25
        table = np.column_stack([table[:, common], table[:, ~common].sum(1) + 1])
        assert alike(table) > UNLIKELY


@pytest.mark.parametrize("draft", ["lookup", "none"])
def test_without_drawn_drafts_a_seed_gives_the_text_of_plain_sampling(model, draft):
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    options = OPTIONS | {"max_new_tokens": 60}
    for seed in range(3):
        texts = []
        for write in (plain, lambda *a, **o: lossless(*a, draft, **o).ids):
            torch.manual_seed(seed)
            texts.append(write(model, ids, **options).tolist())
        assert texts[0] == texts[1]


def test_greedy_takes_the_first_of_equals_and_says_so():
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0]])
    proposal = Proposal((1,), ("t",))
    verdict = Greedy().settle(torch.tensor([[0]]), logits, proposal)
    assert verdict.tied and verdict.tokens == ()
    verdict = Greedy().settle(torch.tensor([[0]]), logits, proposal, exact=True)
    assert verdict.tokens == (1, 0) and verdict.accepted == 1
