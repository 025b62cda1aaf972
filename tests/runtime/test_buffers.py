"""A cache with room to spare holds, whatever is done to it, what transformers' own holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import StaticCache
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from laval.runtime.buffers import SPARE, GrowingLayer, give_room
from tests.tiny import tiny_config

ACTIONS = st.one_of(
    st.tuples(st.just("update"), st.integers(1, 9)),
    st.tuples(st.just("crop"), st.integers(1, 4)),
    st.tuples(st.just("reorder"), st.integers(0, 5)),
    st.tuples(st.just("repeat"), st.integers(1, 2)),
    st.tuples(st.just("select"), st.integers(0, 5)),
    st.tuples(st.just("reset"), st.just(0)),
)


def apply(layer: DynamicLayer, action: str, number: int, seed: int) -> None:
    rows = len(layer.keys) if layer.get_seq_length() else 2
    if action == "update":
        draw = torch.Generator().manual_seed(seed)
        layer.update(*(torch.randn(rows, 3, number, 4, generator=draw) for _ in range(2)))
    elif not layer.get_seq_length():
        return
    elif action == "crop":
        layer.crop(-min(number, layer.get_seq_length() - 1))
    elif action == "reorder":
        layer.reorder_cache(torch.arange(rows).roll(number))
    elif action == "repeat":
        layer.batch_repeat_interleave(number)
    elif action == "select":
        layer.batch_select_indices(torch.tensor([number % rows]))
    else:
        layer.reset()


@given(actions=st.lists(ACTIONS, max_size=12), room=st.integers(0, 6))
def test_it_holds_what_a_dynamic_layer_holds(actions, room):
    ours, theirs = GrowingLayer(room), DynamicLayer()
    for seed, (action, number) in enumerate(actions):
        for layer in (ours, theirs):
            apply(layer, action, number, seed)
        assert ours.get_seq_length() == theirs.get_seq_length()
        if theirs.get_seq_length():
            assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


def test_a_token_is_written_in_place():
    layer = GrowingLayer()
    layer.update(*torch.randn(2, 1, 2, 5, 4))
    places = {layer.update(*torch.randn(2, 1, 2, 1, 4))[0].data_ptr() for _ in range(SPARE - 1)}
    assert places == {layer.buffers[0].data_ptr()} and layer.get_seq_length() == 5 + SPARE - 1


def test_gradients_reach_what_was_appended():
    layer = GrowingLayer()
    keys = torch.randn(1, 2, 5, 4, requires_grad=True)
    layer.update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    layer.update(keys, keys)[0].sum().backward()
    assert torch.equal(keys.grad, torch.ones_like(keys))


@pytest.mark.parametrize("configured", [True, False])
def test_only_empty_caches_of_the_default_kind_get_room(configured):
    config = tiny_config("llama")
    cache = DynamicCache(config=config) if configured else DynamicCache()
    give_room(cache)
    cache.update(*torch.randn(2, 1, 2, 5, 4), 0)
    assert type(cache.layers[0]) is GrowingLayer
    filled = DynamicCache(config=config)
    filled.update(*torch.randn(2, 1, 2, 5, 4), 0)
    give_room(filled)
    assert type(filled.layers[0]) is DynamicLayer


@pytest.mark.parametrize(
    "make",
    [
        lambda: StaticCache(config=tiny_config("llama"), max_cache_len=8),
        lambda: DynamicCache(config=tiny_config("llama"), offloading=True),
        lambda: None,
    ],
)
def test_other_caches_stay_as_they_are(make):
    cache = make()
    before = [type(layer) for layer in getattr(cache, "layers", ())]
    give_room(cache)
    assert [type(layer) for layer in getattr(cache, "layers", ())] == before


def test_sliding_layers_keep_their_window():
    cache = DynamicCache(config=tiny_config("gemma2"))
    give_room(cache)
    kinds = {type(layer) for layer in cache.layers}
    assert kinds == {GrowingLayer, DynamicSlidingWindowLayer}
