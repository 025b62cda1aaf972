"""Perplexity is what its definition says, whatever the batch, the padding and the kind of model."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from laval.evaluate import Text, per_token, perplexity, ratio_interval
from laval.evaluate import reader as reader_module
from laval.models import dense, using
from tests.evaluate.models import routed, some_text
from tests.tiny import tiny_model

QUIET = {"progress": False}


@torch.no_grad()
def by_hand(model, ids, length) -> torch.Tensor:
    """Nats per token, one window at a time, from the whole softmax."""
    found = []
    for start in range(0, len(ids) - 1, length):
        window = ids[start : min(start + length, len(ids) - 1)]
        logits = model(input_ids=window[None]).logits[0].double()
        following = ids[start + 1 : start + 1 + len(window)]
        found += [-float(torch.log(row.softmax(-1)[token])) for row, token in zip(logits, following, strict=True)]
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # Gemma 2 caps its logits
def test_perplexity_is_the_definition(family):
    model, ids = tiny_model(family), some_text()
    expected = by_hand(model, ids, 16)
    score = perplexity(model, ids, length=16, **QUIET)
    assert score.perplexity == pytest.approx(math.exp(float(expected.mean())), rel=1e-5)
    assert (score.tokens, score.mean_depth, score.layer_rates) == (60, 4.0, (1.0,) * 4)
    torch.testing.assert_close(per_token(model, ids, length=16, **QUIET), expected, rtol=0, atol=1e-5)


def test_a_family_that_laval_does_not_know_is_read_too():
    config = AutoConfig.for_model("gpt2", vocab_size=128, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    model = AutoModelForCausalLM.from_config(config).eval()
    torch.testing.assert_close(
        per_token(model, some_text(), length=16, batch=3, **QUIET), by_hand(model, some_text(), 16), rtol=0, atol=1e-5
    )


def test_a_routed_model_is_read_with_its_routes():
    model, ids = routed(), some_text()
    torch.testing.assert_close(per_token(model, ids, length=16, **QUIET), by_hand(model, ids, 16), rtol=0, atol=1e-5)
    assert 1.2 < perplexity(model, ids, length=16, **QUIET).mean_depth < 3.8
    with dense(model):
        off = perplexity(model, ids, length=16, **QUIET)
    assert off == perplexity(model.base, ids, length=16, **QUIET)


@pytest.mark.parametrize("batch", [2, 3, 4])  # 4 windows, the last of them ragged
def test_batch_and_padding_change_nothing(batch):
    model, ids = routed(), some_text(55)
    alone, together = (perplexity(model, ids, length=16, batch=size, **QUIET) for size in (1, batch))
    assert together.nats == pytest.approx(alone.nats, rel=1e-6)
    assert (together.tokens, together.mean_depth, together.layer_rates) == (
        alone.tokens,
        alone.mean_depth,
        alone.layer_rates,
    )


@torch.no_grad()
def test_depth_counts_every_position_fed_in_and_no_pad():
    model, ids = routed(), some_text(55)
    score = perplexity(model, ids, length=16, **QUIET)
    runs = []
    for start in range(0, 54, 16):
        routes = model(input_ids=ids[start : min(start + 16, 54)][None]).routes
        runs.append(torch.stack([route.run[0] for route in routes]))
    run = torch.cat(runs, dim=1).double()  # [3, 54]
    assert score.layer_rates == pytest.approx([1.0, *run.mean(1).tolist()])
    assert score.mean_depth == pytest.approx(1 + float(run.sum(0).mean()))


def test_overlap_gives_context():
    model, ids = tiny_model("llama"), some_text(41)
    whole = per_token(model, ids, length=40, **QUIET)
    half = per_token(model, ids, length=16, stride=8, **QUIET)
    assert half.shape == whole.shape
    torch.testing.assert_close(half[:16], whole[:16], rtol=0, atol=1e-5)
    with torch.no_grad():
        logits = model(input_ids=ids[None, 8:24]).logits[0, 8].double()  # the first token that only window 2 scores
    assert float(half[16]) == pytest.approx(float(-logits.log_softmax(-1)[ids[17]]), rel=1e-5)


def test_bits_per_byte():
    score = perplexity(tiny_model("llama"), Text(some_text(), bytes=200), length=16, **QUIET)
    assert score.bits_per_byte == pytest.approx(score.nats * 60 / math.log(2) / 200)
    assert perplexity(tiny_model("llama"), some_text(), **QUIET).bits_per_byte is None


def test_logits_are_made_in_pieces(monkeypatch):
    model, ids, sizes = routed(), some_text(), []
    expected = per_token(model, ids, length=16, **QUIET)
    monkeypatch.setattr(reader_module, "ROWS", 7)
    model.get_output_embeddings().register_forward_hook(lambda *args: sizes.append(args[-1].shape[:-1].numel()))
    torch.testing.assert_close(per_token(model, ids, length=16, **QUIET), expected, rtol=0, atol=1e-5)
    assert max(sizes) <= 7


def test_the_model_is_left_as_it_was():
    model = routed().train()
    with using(model, "masked"):
        perplexity(model, some_text(), length=16, **QUIET)
        assert model.training and model.recording is None and model.runtime == "masked"
    assert not model.backbone.decoder.norm._forward_pre_hooks


def test_a_ratio_and_its_interval():
    generator = torch.Generator().manual_seed(0)
    b = torch.rand(4096, generator=generator, dtype=torch.float64)
    a = b + 0.1 + 0.5 * torch.randn(4096, generator=generator, dtype=torch.float64)
    found = ratio_interval(a, b, seed=3, length=64)
    assert found.ratio == pytest.approx(math.exp(float(a.mean()) - float(b.mean())))
    spread = 0.5 / 64  # standard error of the mean of 4096
    assert math.log(found.high / found.low) == pytest.approx(2 * 1.96 * spread, rel=0.25)
    assert found == ratio_interval(a, b, seed=3, length=64)
    assert ratio_interval(b, b) == type(found)(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="same text"):
        ratio_interval(a, b[1:])
