"""The loop of `generate` for one sequence gives what transformers' own gives, and leaves to it what it cannot do."""

import pytest
import torch
from transformers import GenerationMixin, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache
from transformers.generation.streamers import BaseStreamer

import laval
from laval.compat import CACHE
from laval.models import loop
from tests.models.folders import routed
from tests.tiny import tiny_model

FAMILIES = ("llama", "qwen3", "gemma3_text")
PROMPT, NEW = 7, 12


def model_of(family: str = "llama", dtype: torch.dtype = torch.float64, **overrides):
    model = routed(tiny_model(family, dtype, **overrides)).to(dtype)
    model.generation_config.eos_token_id = None
    for layer, router in zip(model.policy.layers, model.policy.routers.values(), strict=True):
        torch.nn.init.normal_(router.head.weight, generator=torch.Generator().manual_seed(layer))
    return model.eval()


def ids(tokens: int = PROMPT, rows: int = 1) -> torch.Tensor:
    return torch.randint(3, 128, (rows, tokens), generator=torch.Generator().manual_seed(3))


def generated(model, stock: bool, monkeypatch, prompt=None, **options) -> torch.Tensor:
    """Ids by our loop, or by transformers' own."""
    with monkeypatch.context() as patch:
        if stock:
            patch.setattr(loop, "walk_of", lambda *_: None)
        torch.manual_seed(5)
        return model.generate(
            ids() if prompt is None else prompt, **{"max_new_tokens": NEW, "do_sample": False} | options
        )


@pytest.fixture
def walked(monkeypatch) -> list:
    """The walks that were made."""
    made, walk_of = [], loop.walk_of
    monkeypatch.setattr(loop, "walk_of", lambda *given: made.append(walk_of(*given)) or made[-1])
    return made


@pytest.mark.parametrize("runtime", ["auto", "full", "conditional"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True, "temperature": 1.5, "top_k": 9},
        {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
        {"attention_mask": torch.ones(1, PROMPT, dtype=torch.long)},
        {"max_new_tokens": 1},
    ],
    ids=["greedy", "sampled", "penalised", "masked", "one"],
)
def test_same_tokens_as_transformers_loop(runtime, options, monkeypatch, walked):
    model = model_of()
    with laval.models.using(model, runtime):
        expected = generated(model, True, monkeypatch, **options)
        assert generated(model, False, monkeypatch, **options).tolist() == expected.tolist()
    assert walked[-1] is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_same_tokens_past_the_first_turns(family, monkeypatch):
    model = model_of(family)
    options = {"max_new_tokens": loop.TURNS + 9}
    assert (
        generated(model, False, monkeypatch, **options).tolist()
        == generated(model, True, monkeypatch, **options).tolist()
    )


def test_logits_of_a_walk_are_those_of_the_forward():
    model = model_of()
    text, cache = ids(PROMPT + 3), DynamicCache(config=model.config.text_config)
    with torch.no_grad():
        expected = model(text, use_cache=False).logits[:, PROMPT:]
        model(text[:, :PROMPT], **{CACHE: cache})
        walk = loop.Walk(model, model.way(1, True, "cpu"), model.decoders.of(model, cache), cache)
        for place in range(3):
            found = walk(text[:, PROMPT + place : PROMPT + place + 1])
            torch.testing.assert_close(found, expected[:, place])
        cache.crop(-2)  # a walk goes by what the cache holds, not by how often it was called
        torch.testing.assert_close(walk(text[:, PROMPT + 1 : PROMPT + 2]), expected[:, 1])


def test_stops_where_transformers_stops(monkeypatch):
    model = model_of()
    whole = generated(model, True, monkeypatch)
    token = int(whole[0, PROMPT + 5])

    class Fourth(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] == PROMPT + 4)

    for options in ({"eos_token_id": [token, 127]}, {"stopping_criteria": StoppingCriteriaList([Fourth()])}):
        expected = generated(model, True, monkeypatch, **options)
        assert expected.shape[1] < PROMPT + NEW
        assert generated(model, False, monkeypatch, **options).tolist() == expected.tolist()


def test_streams_the_same_pieces(monkeypatch):
    class Kept(BaseStreamer):
        def __init__(self):
            self.pieces = []

        def put(self, value):
            self.pieces.append(value.tolist())

        def end(self):
            self.pieces.append("end")

    model, kept = model_of(), {}
    for stock in (True, False):
        kept[stock] = Kept()
        generated(model, stock, monkeypatch, streamer=kept[stock])
    assert kept[True].pieces == kept[False].pieces
    assert len(kept[True].pieces) == 1 + NEW + 1


def test_a_recording_sees_every_token(monkeypatch):
    model, seen = model_of(), {}
    for stock in (True, False):
        with laval.models.recording(model) as record:
            generated(model, stock, monkeypatch)
        seen[stock] = record.run
    assert seen[True].shape[-1] == PROMPT + NEW - 1
    assert seen[True].tolist() == seen[False].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": ids(rows=2)},
        {"attention_mask": torch.tensor([[0] + [1] * (PROMPT - 1)])},
        {"position_ids": torch.arange(PROMPT)[None] + 1},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 3},
    ],
    ids=["batch", "pads", "moved", "uncached", "static", "chunks"],
)
def test_what_is_not_plain_is_left_to_transformers(options, monkeypatch, walked):
    generated(model_of(), False, monkeypatch, **options)
    assert walked == [None]


def test_what_is_asked_beside_tokens_is_left_to_transformers(monkeypatch, walked):
    model = model_of()
    made = generated(model, False, monkeypatch, return_dict_in_generate=True, output_logits=True)
    assert walked == [None] and len(made.logits) == NEW
    hook = model.register_forward_hook(lambda *_: None)
    generated(model, False, monkeypatch)
    hook.remove()
    with laval.dense(model):
        generated(model, False, monkeypatch)
    generated(model_of("gemma3_text"), False, monkeypatch)
    assert walked == [None] * 4
    assert issubclass(type(model), GenerationMixin)


def test_a_second_turn_goes_on_with_the_cache_of_the_first(monkeypatch, walked):
    model = model_of()
    cache = DynamicCache(config=model.config.text_config)
    first = generated(model, False, monkeypatch, **{CACHE: cache})
    longer = torch.cat((first, ids(3)), dim=1)
    found = generated(model, False, monkeypatch, prompt=longer, **{CACHE: cache})
    assert None not in walked
    assert found.tolist() == generated(model, True, monkeypatch, prompt=longer).tolist()
