"""The early exit: lanes guess as plain blocks do, and its share counts whatever the weights are kept in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from laval.speculate import drafts
from laval.speculate.drafts import ExitDraft, bytes_of
from laval.speculate.reader import Reader
from tests.speculate.models import adaptive

TEXT = torch.tensor([[5, 6, 7, 8, 9]])


@torch.no_grad()
def guesses(model, layers: int) -> list[torch.Tensor]:
    """Logits of three tokens in a row, the cache left as it was."""
    reader, draft = Reader(model, DynamicCache(config=model.config.text_config)), ExitDraft(model, layers)
    reader.start(TEXT)
    reader.read([3])
    made = [draft.read(token, reader) for token in (4, 5, 6)]
    draft.forget(3, reader)
    assert {layer.get_seq_length() for layer in reader.cache.layers} == {6}
    return made


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_lanes_guess_as_blocks_do(family, layers, monkeypatch):
    model, calls, through = adaptive(family, dtype=torch.float64), [], drafts.through
    monkeypatch.setattr(drafts, "through", lambda *given: calls.append(1) or through(*given))
    quick = guesses(model, layers)
    assert len(calls) == 3
    monkeypatch.setattr(drafts, "suits", lambda *given: False)
    torch.testing.assert_close(quick, guesses(model, layers))
    assert layers == 1 or not torch.allclose(quick[0], guesses(model, 1)[0])


def test_bytes_are_counted_in_every_number_type():
    module = nn.Linear(3, 5).half()
    module.register_buffer("table", torch.zeros(7, dtype=torch.uint8))
    assert bytes_of(module) == 2 * 20 + 7


def test_the_share_is_that_of_the_layers_and_the_head():
    model = adaptive()
    block, head = bytes_of(model.backbone.blocks[0].layer), bytes_of(model.get_output_embeddings())
    assert ExitDraft(model, 2).share == pytest.approx((2 * block + head) / (4 * block + head))
