"""Greedy text is the dense model's, token for token, whatever drafts propose."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.models import using
from laval.speculate import lossless
from tests.tiny import FAMILIES, WINDOW, tiny_model

NEW = 40


def adaptive(family: str, **options):
    """A tiny model with routers of some spread."""
    model = laval.attach(tiny_model(family, **options), laval.FlexiDepth(layers=(1, 2, 3), router_width=8))
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def plain(model, ids, **options):
    with using(model, "full"):
        return model.generate(ids, **options)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return adaptive(request.param)


@pytest.mark.parametrize("draft", ["auto", "skip", "exit", "lookup", "none"])
@pytest.mark.parametrize("length", [3, 3 * WINDOW])
def test_the_text_is_the_dense_models(model, draft, length):
    ids = torch.randint(3, 128, (1, length))
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    made = lossless(model, ids, draft, **options)
    assert made.ids.tolist() == plain(model, ids, **options).tolist()
    account = made.account
    assert account.new_tokens == NEW and account.passes <= NEW - 1
    assert draft == "none" or account.rounds.total() == account.passes
