"""Commit rules: what each decides and what it adds to the loss, against its published equation."""

from __future__ import annotations

import pytest
import torch

from laval.shorten import Memory, Nothing, Rows
from laval.shorten.commit import Commits, Fixed, Given, Rule, Tokens
from laval.shorten.factor import shorten_factor, threshold_for
from laval.shorten.pattern import Pattern, tokens_of
from laval.shorten.predictor import Entropy, Gumbel, Supervised, spikes
from laval.shorten.router import Cosine
from laval.shorten.uncertainty import Uncertainty
from laval.shorten.unigram import UnigramEnds

WIDTH = 6
ASCII = tuple(map(chr, range(128)))


def rows_of(ids, first: int = 0, width: int = WIDTH) -> Rows:
    ids = torch.as_tensor(ids)
    count = torch.full(ids.shape[:1], ids.shape[1])
    x = torch.randn(*ids.shape, width, dtype=torch.float64)
    return Rows(x, count, torch.full_like(count, first), ids)


def of_text(text: str) -> Rows:
    return rows_of([[ord(character) for character in text]])


def decide(settings, rows, step=5.0, **changes) -> tuple[Rule, Commits]:
    rule = settings.build(WIDTH, step).double()
    for name, value in changes.items():
        setattr(rule, name, value)
    rule.eval()
    return rule, rule(rows, Nothing())


def test_fixed_commits_at_every_kth_row_of_the_stream():
    assert decide(Fixed(3), rows_of([[0] * 7]))[1].bits.tolist() == [[1, 0, 0, 1, 0, 0, 1]]
    assert decide(Fixed(3), rows_of([[0] * 4], first=2))[1].bits.tolist() == [[0, 1, 0, 0]]
    assert decide(Fixed(), rows_of([[0] * 4]), step=2)[1].bits.tolist() == [[1, 0, 1, 0]]
    with pytest.raises(ValueError, match="shortens by 2.5.*whole number"):
        Fixed().build(WIDTH, 2.5)
    with pytest.raises(ValueError, match="factor -1"):
        Fixed(-1)


def test_a_dropped_factor_is_drawn_in_training_only():
    rule = Fixed(4, (2, 3)).build(WIDTH, 4.0).train()
    drawn = {tuple(rule(rows_of([[0] * 7]), Nothing()).bits.int()[0].tolist()) for _ in range(30)}
    assert drawn == {(1, 0, 1, 0, 1, 0, 1), (1, 0, 0, 1, 0, 0, 1)}
    rule.eval()
    assert rule(rows_of([[0] * 7]), Nothing()).bits.sum() == 2


def test_tokens_commit_at_themselves():
    assert decide(Tokens((0, 4)), rows_of([[4, 1, 0, 0, 2]]))[1].bits.tolist() == [[1, 0, 1, 1, 0]]
    with pytest.raises(ValueError, match="at least one token id"):
        Tokens(())


def test_given_commits_are_asked_for_and_checked():
    rule = Given().build(WIDTH, 1.0)
    rows = rows_of([[1, 2, 3]])
    assert rule(rows, Nothing(), torch.tensor([[0, 1, 0]])).bits.tolist() == [[False, True, False]]
    with pytest.raises(ValueError, match="brings no boundaries"):
        rule(rows, Nothing())
    with pytest.raises(ValueError, match=r"shape \[1, 2\]; expected \[1, 3\]"):
        rule(rows, Nothing(), torch.tensor([[0, 1]]))
    for wrong in (float("nan"), 1.5):
        with pytest.raises(ValueError, match="NaN or numbers outside 0 to 1"):
            rule(rows, Nothing(), torch.tensor([[0, wrong, 0]]))


@pytest.mark.parametrize(
    ("regex", "text", "ends"),
    [
        (r"\s", "ab  c d", "0011010"),
        (r"\w+\s", "ab  c d", "0010010"),
        (r"[.!?]\s", "a. b.c! ", "00100001"),
        ("ab", "aabab", "00101"),
    ],
)
def test_patterns_commit_where_a_match_ends(regex, text, ends):
    rule = Pattern(regex, ASCII).build(WIDTH, 1.0)
    rows = of_text(text)
    whole = rule(rows, Nothing()).bits.int()[0].tolist()
    assert "".join(map(str, whole)) == ends
    memory, found = Memory(), []
    for place, character in enumerate(text):
        step = Rows(rows.x[:, :1], torch.tensor([1]), torch.tensor([place]), torch.tensor([[ord(character)]]))
        found += rule(step, memory).bits.int()[0].tolist()
    assert found == whole


@pytest.mark.parametrize("regex", [r"\w(?=\s)", r"\w+", r"\w\b", "a$", r"a+", r"\s+", "(?!a)b|a(?!b)"])
def test_patterns_that_must_look_ahead_are_refused(regex):
    with pytest.raises(ValueError, match="cannot be decided as the text is read"):
        Pattern(regex, ASCII)


def test_no_pattern_at_all_is_refused():
    with pytest.raises(ValueError, match="not a regular expression"):
        Pattern("(", ASCII)


def test_patterns_of_single_tokens_are_a_set():
    assert tokens_of(r"\s", [" ", "a", "b\n", "\tb"]).tokens == (0, 2, 3)


def test_unigram_pieces_end_words_with_the_space_behind():
    text = "the cat sat on the mat and the rat sat on the cat\n" * 20
    label = UnigramEnds.train(text, pieces=30)
    ends = label("the cat  sat")
    assert ends.shape == (12,) and ends[-1]
    assert ends[3] and ends[8]  # the spaces behind words, and of two the second
    assert not ends[7]
    pieces = [len(piece) for piece in label.tokenizer.encode("the").tokens]
    assert ends[:3].nonzero()[:, 0].tolist() == [sum(pieces[: n + 1]) - 1 for n in range(len(pieces) - 1)]
    with pytest.raises(ValueError, match="empty or blank"):
        UnigramEnds.train(" \n")
    with pytest.raises(ValueError, match="pieces is 3"):
        UnigramEnds.train(text, pieces=3)


def test_the_supervised_loss_is_binary_cross_entropy_over_real_rows():
    rows = rows_of([[1, 2, 3, 4]] * 2)
    rows = Rows(rows.x, torch.tensor([4, 2]), rows.first, rows.ids)
    rule, commits = decide(Supervised(8), rows)
    labels = torch.tensor([[1, 0, 0, 1], [0, 1, 1, 1]])
    p, y = commits.chance[commits.real], labels[commits.real].double()
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    torch.testing.assert_close(rule.loss(commits, labels), expected)
    rule.legacy = True
    q = p.sigmoid()
    torch.testing.assert_close(rule.loss(commits, labels), -(y * q.log() + (1 - y) * (1 - q).log()).mean())
    assert rule.loss(commits) is None
    assert commits.bits.equal((commits.chance > 0.5) & commits.real)


def test_spikes_exceed_their_neighbours_on_the_left():
    entropy = torch.tensor([[3.0, 1, 2, 2.5, 2.4, 2.6, 1]])
    assert spikes(entropy, 2).int().tolist() == [[1, 0, 0, 1, 0, 1, 0]]
    assert spikes(entropy, 1).int().tolist() == [[1, 0, 1, 1, 0, 1, 0]]
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.99, 0.01], [0.9, 0.1]]]))
    assert Entropy(8).build(WIDTH, 4.0).labels(logits).int().tolist() == [[1, 0, 0]]


def test_the_gumbel_prior_is_a_binomial():
    rows = rows_of([[1] * 9] * 2)
    rows = Rows(rows.x, torch.tensor([9, 6]), rows.first, rows.ids)
    rule, commits = decide(Gumbel(8, rate=0.3), rows)
    prior = torch.distributions.Binomial(torch.tensor([9.0, 6.0]), torch.tensor(0.3))
    expected = -(prior.log_prob(commits.bits.sum(1).float()) / torch.tensor([9.0, 6.0])).mean()
    torch.testing.assert_close(rule.loss(commits), expected.double(), rtol=1e-5, atol=1e-5)


def test_gumbel_samples_in_training_and_rounds_at_evaluation():
    rule, first = decide(Gumbel(8, rate=0.3), rows := rows_of([[1] * 40]))
    assert rule(rows, Nothing()).bits.equal(first.bits) and first.soft is None
    assert first.bits.equal(first.chance > 0.5)
    for sampling in (rule.train(), decide(Gumbel(8, rate=0.3, legacy=True), rows)[0]):
        draws = [sampling(rows, Nothing()) for _ in range(8)]
        assert len({tuple(draw.bits[0].tolist()) for draw in draws}) > 1
        assert draws[0].soft.round().bool().equal(draws[0].bits)
        rule.loss(draws[0]).backward()
        assert sampling.head.weight.grad is not None and sampling.head.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="rate is 1"):
        Gumbel(rate=1.0).build(WIDTH, 5.0)


def test_the_router_is_one_minus_a_cosine():
    rule, commits = decide(Cosine(), rows := rows_of([[1] * 5]))
    x = rows.x[0]
    expected = [1.0] + [float(1 - torch.cosine_similarity(x[t], x[t - 1], dim=0)) / 2 for t in range(1, 5)]
    torch.testing.assert_close(commits.chance[0], torch.tensor(expected).double(), rtol=0, atol=1e-7)
    memory, found = Memory(), []
    for t in range(5):
        step = Rows(rows.x[:, t : t + 1], torch.tensor([1]), torch.tensor([t]), rows.ids[:, :1])
        found.append(rule(step, memory).chance)
    torch.testing.assert_close(torch.cat(found, 1), commits.chance, rtol=0, atol=1e-12)


def test_the_router_of_the_authors_code_swaps_its_maps():
    rows = rows_of([[1] * 5])
    rule, ours = decide(Cosine(), rows)
    torch.nn.init.normal_(rule.queries.weight)
    swapped, _ = decide(Cosine(legacy=True), rows, keys=rule.queries, queries=rule.keys)
    torch.testing.assert_close(swapped(rows, Nothing()).chance, rule(rows, Nothing()).chance)
    assert not torch.allclose(rule(rows, Nothing()).chance, ours.chance)
    same = Rows(torch.zeros_like(rows.x), rows.lengths, rows.first, rows.ids)  # a cosine of zero: one half exactly
    assert decide(Cosine(), same)[1].bits.all() and decide(Cosine(legacy=True), same)[1].bits.sum() == 1


def test_the_ratio_loss_is_least_at_the_wanted_share():
    rule = Cosine(factor=4).build(WIDTH, 4.0)
    real = torch.ones(1, 8, dtype=torch.bool)
    quarter = torch.tensor([[1, 0, 0, 0, 1, 0, 0, 0]]).bool()
    found = {
        mean: float(rule.loss(Commits(quarter, real, torch.full((1, 8), mean)))) / 0.03 for mean in (0.1, 0.25, 0.5)
    }
    assert found[0.25] == pytest.approx(1)
    everywhere = Commits(real, real, torch.full((1, 8), 0.9))
    assert float(rule.loss(everywhere)) / 0.03 == pytest.approx(4 / 3 * 3 * 0.9)


@pytest.mark.parametrize("rise", [False, True])
def test_uncertainty_is_the_entropy_of_a_model_of_its_own(rise):
    settings = Uncertainty(vocabulary=9, layers=1, width=8, heads=2, threshold=0.0, rule="rise" if rise else "level")
    rule, _ = decide(settings, rows := rows_of(torch.randint(0, 9, (2, 7)), width=WIDTH))
    for parameter in rule.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = rule.reader.embed(rows.ids)
    p = rule.reader.head(rule.stack(rows.having(x), Nothing()).x).softmax(-1)
    entropy = -(p * p.log()).sum(-1)
    expected = entropy.diff(dim=1, prepend=torch.zeros(2, 1).double()) if rise else entropy
    commits = rule(rows, Nothing())
    torch.testing.assert_close(commits.score[:, 1:], expected[:, 1:])
    assert commits.bits[:, 1:].equal(commits.score[:, 1:] > 0) and commits.bits[:, 0].all()
    nll = -p[:, :-1].log().gather(-1, rows.ids[:, 1:, None]).mean()
    torch.testing.assert_close(rule.loss(commits), nll)
    memory, found = Memory(), []
    for t in range(7):
        step = Rows(rows.x[:, t : t + 1], torch.ones(2).long(), torch.full((2,), t), rows.ids[:, t : t + 1])
        found.append(rule(step, memory).score)
    torch.testing.assert_close(torch.cat(found, 1), commits.score, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [Supervised(8), Gumbel(8, rate=0.2), Cosine(), Uncertainty(vocabulary=9, layers=1, width=8, heads=2)],
)
def test_a_threshold_gives_the_wanted_factor(settings):
    rows = rows_of(torch.randint(0, 9, (4, 50)))
    rule, commits = decide(settings, rows)
    for factor in (2.0, 4.0, 5.7):
        rule.threshold = threshold_for(rule, commits, factor)
        assert shorten_factor(rule(rows, Nothing())) == pytest.approx(factor, rel=0.03)
    for wrong in (1.0, 0.0, 201.0):
        with pytest.raises(ValueError, match="above 1 and at most 200"):
            threshold_for(rule, commits, wrong)
    with pytest.raises(ValueError, match="no threshold"):
        threshold_for(*decide(Fixed(2), rows), 2.0)
