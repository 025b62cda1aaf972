"""What cannot be followed exactly is refused by its name."""

from __future__ import annotations

import pytest
import torch

import laval
from laval.speculate import lossless
from tests.speculate.models import adaptive

PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def model():
    return adaptive()


@pytest.mark.parametrize(
    "options, name",
    [
        ({"num_beams": 2}, "num_beams is 2"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences is 2"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"use_cache": False}, "use_cache is False"),
        ({"cache_implementation": "static"}, "StaticCache"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1]])}, "attention_mask"),
        ({"draft": "magic"}, "draft is 'magic'.*auto, head, skip, exit, lookup, none"),
    ],
)
def test_options_are_named(model, options, name):
    with pytest.raises(ValueError, match=name):
        lossless(model, PROMPT, **{"max_new_tokens": 4, **options})


def test_one_row_only(model):
    with pytest.raises(ValueError, match="2 rows; expected 1"):
        lossless(model, PROMPT.repeat(2, 1), max_new_tokens=4)


def test_a_model_that_skips_nothing_has_no_skipping_draft():
    model = adaptive(method=laval.DropLayers(layers=()))
    with pytest.raises(ValueError, match="skips nothing"):
        lossless(model, PROMPT, "skip", max_new_tokens=4)
    assert lossless(model, PROMPT, "exit", max_new_tokens=4, do_sample=False).ids.shape == (1, 8)


def test_a_plugin_that_hides_skipped_tokens_cannot_draft():
    model = adaptive(method=laval.FlexiDepth(layers=(1, 2), router_width=8, keep_kv=False))
    with pytest.raises(ValueError, match="keep_kv is False"):
        lossless(model, PROMPT, "skip", max_new_tokens=4)


def test_other_models_are_no_adaptive_ones(model):
    with pytest.raises(TypeError, match="laval"):
        lossless(model.base, PROMPT, max_new_tokens=4)
