"""Greedy text is the dense model's, token for token, whatever drafts propose."""

from __future__ import annotations

import pytest
import torch

from laval.speculate import Lossless, lossless, verify
from tests.speculate.models import adaptive, plain
from tests.tiny import FAMILIES, WINDOW

NEW = 24


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return adaptive(request.param, max_position_embeddings=256)


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


@pytest.fixture(scope="module")
def llama():
    return adaptive(max_position_embeddings=256)


PROMPT = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]])


def test_logits_processors_see_the_text_in_front_of_each_token(llama):
    options = {"max_new_tokens": NEW, "do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    for draft in ("lookup", "skip"):
        assert lossless(llama, PROMPT, draft, **options).ids.tolist() == plain(llama, PROMPT, **options).tolist()


def test_it_stops_where_the_dense_model_stops(llama):
    text = plain(llama, PROMPT, max_new_tokens=NEW, do_sample=False, eos_token_id=None)[0].tolist()
    for place in range(PROMPT.shape[1], len(text), 5):
        options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": text[place]}
        made = lossless(llama, PROMPT, "skip", **options)
        assert made.ids.tolist() == plain(llama, PROMPT, **options).tolist()
        assert made.ids[0, -1] == text[place]


def test_one_token_needs_no_pass_beyond_the_prompt(llama):
    made = lossless(llama, PROMPT, max_new_tokens=1, do_sample=False)
    assert made.ids.shape[1] == PROMPT.shape[1] + 1 and made.account.passes == 0


def test_streamed_tokens_are_those_returned(llama):
    class Listener:
        def __init__(self):
            self.heard, self.ended = [], False

        def put(self, value):
            self.heard.extend(value.flatten().tolist())

        def end(self):
            self.ended = True

    listener = Listener()
    made = lossless(llama, PROMPT, "skip", max_new_tokens=NEW, do_sample=False, streamer=listener)
    assert listener.ended and listener.heard == made.ids[0].tolist()


def test_a_cache_that_has_read_the_start_goes_on(llama):
    from laval.compat import cache_argument, output_cache

    options = {"max_new_tokens": NEW, "do_sample": False}
    with torch.no_grad():
        cache = output_cache(llama(PROMPT[:, :5], use_cache=True))
    made = llama.generate(PROMPT, custom_generate=Lossless("lookup"), **options, **cache_argument(cache))
    assert made.tolist() == plain(llama, PROMPT, **options).tolist()


def test_every_tie_is_settled_as_plain_decoding_would(llama, monkeypatch):
    """A bound so wide that every token read beside others counts as tied: all of them are read again."""
    monkeypatch.setattr(verify, "ROUNDINGS", 1e9)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    for family in ("llama", "gemma3_text"):
        model = adaptive(family)
        made = lossless(model, PROMPT, "skip", **options)
        assert made.ids.tolist() == plain(model, PROMPT, **options).tolist()
        assert made.account.replays > 5, family


def test_the_skipping_draft_leaves_the_model_as_it_was(llama):
    before, taus = dict(llama.policy.thresholds), llama.config.taus
    lossless(llama, PROMPT, "skip", max_new_tokens=8, do_sample=False)
    assert llama.policy.thresholds == before and llama.config.taus == taus and llama.runtime == "auto"
