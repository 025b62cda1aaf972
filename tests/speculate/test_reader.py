"""The reader's own book: tokens and last states of what it has read, whatever was read at once or forgotten."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache

from laval.models import using
from laval.speculate.reader import Reader
from laval.speculate.states import States
from tests.speculate.models import adaptive

TEXT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def reader_of(model) -> Reader:
    return Reader(model, DynamicCache(config=model.config.text_config), States())


@torch.no_grad()
def states_of(model, tokens) -> torch.Tensor:
    """Those that transformers hands out, after the final norm: [T, D]."""
    with using(model, "full"):
        return model.base.get_decoder()(torch.tensor([tokens])).last_hidden_state[0]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@torch.no_grad()
def test_states_are_those_of_the_text_read_so_far(family):
    model = adaptive(family, dtype=torch.float64)
    reader = reader_of(model)
    logits = reader.start(torch.tensor([TEXT[:4]]))
    for more, wrong in (([], 0), ([*TEXT[6:9], 99, 98], 2), ([], 0)):
        assert reader.tokens == TEXT[: reader.length]
        logits = reader.read([TEXT[reader.length], *more])
        reader.forget(wrong)
    assert reader.length == 10 and reader.tokens == TEXT[:10]
    found = reader.states.since(0)
    torch.testing.assert_close(found, states_of(model, TEXT[:10]))
    torch.testing.assert_close(reader.states.since(6), found[6:])
    torch.testing.assert_close(logits[-1], model.get_output_embeddings()(found[-1]))


@torch.no_grad()
def test_states_survive_reading_again():
    for family in ("llama", "gemma3_text"):
        model = adaptive(family, dtype=torch.float64)
        reader = reader_of(model)
        reader.start(torch.tensor([TEXT[:4]]))
        reader.read(TEXT[4:8])
        reader.replay(torch.tensor([TEXT[:8]]))
        assert reader.tokens == TEXT[:8] and reader.exact == 8
        torch.testing.assert_close(reader.states.since(0), states_of(model, TEXT[:8]))


@torch.no_grad()
def test_of_a_cache_that_was_handed_in_only_the_rest_is_known():
    model = adaptive(dtype=torch.float64)
    first = reader_of(model)
    first.start(torch.tensor([TEXT[:5]]))
    reader = Reader(model, first.cache, States())
    reader.start(torch.tensor([TEXT[:8]]))
    assert reader.states.first == 5 and reader.tokens == TEXT[:8]
    torch.testing.assert_close(reader.states.since(5), states_of(model, TEXT[:8])[5:])
    with pytest.raises(ValueError, match="place is 4; expected 5"):
        reader.states.since(4)
