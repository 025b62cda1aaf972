"""`generate` from Python keeps to the context length, as the commands do."""

import pytest
import torch

import laval
from laval.models.generation import WithinContext
from tests.models.folders import routed
from tests.tiny import tiny_model

CONTEXT = 24


def bounded(**overrides):
    model = routed(tiny_model("llama", max_position_embeddings=CONTEXT, **overrides))
    assert isinstance(model, WithinContext)
    model.generation_config.eos_token_id = None
    return model


def ids(tokens: int) -> torch.Tensor:
    return torch.randint(3, 128, (2, tokens), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", [{"max_new_tokens": 5}, {"max_length": 25}, {"max_new_tokens": 5, "num_beams": 2}])
def test_more_than_the_context_is_refused_before_any_work(options, monkeypatch):
    model = bounded()
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: pytest.fail("a forward ran"))
    with pytest.raises(
        ValueError, match=r"prompt \(20 tokens\) and 5 new tokens exceed.*of 24; ask for at most 4 new"
    ):
        model.generate(ids(20), do_sample=False, **options)
    with laval.dense(model), pytest.raises(ValueError, match="prompt has 30 tokens; expected at most 24"):
        model.generate(ids(30), do_sample=False, **options | {"max_length": 40})


@pytest.mark.parametrize("options", [{"max_new_tokens": 4}, {"max_length": 24}, {}])
def test_the_whole_context_may_be_used(options):
    assert bounded().generate(ids(20), do_sample=False, **options).shape == (2, CONTEXT)


def test_embedded_prompts_count_too():
    model = bounded()
    embeds = model.get_input_embeddings()(ids(20))
    assert model.generate(inputs_embeds=embeds, max_new_tokens=4, do_sample=False).shape[1] == 4
    with pytest.raises(ValueError, match=r"prompt \(20 tokens\) and 5 new tokens exceed"):
        model.generate(inputs_embeds=embeds, max_new_tokens=5, do_sample=False)
