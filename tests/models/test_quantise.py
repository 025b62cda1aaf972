"""A quantised model is near the one it was made from, obeys the same rules, and reads nothing of what it skips."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import laval
from laval.measure import LayerShape, Peaks, SkipShape, cost
from laval.measure.storage import Int8Shape
from laval.models import attach, dense, using
from laval.models.plugin import load_plugin, save_plugin
from laval.models.quantise import Int8Linear, is_quantised, quantise
from laval.ops.int8 import exact_linear
from laval.skip import DropLayers
from tests.invariants import harness
from tests.invariants import skipping as rules
from tests.invariants.harness import forward, in_pieces, prompt
from tests.invariants.subjects import Subject
from tests.models.folders import assert_came_back, logits_of, routed
from tests.tiny import FAMILIES, implementations, tiny_model

RULES = [
    harness.the_future_never_leaks,
    harness.cached_equals_uncached,
    harness.cached_equals_uncached_padded,
    harness.padded_batch_equals_single,
    harness.batch_equals_single,
    rules.runtimes_agree,
    rules.runtimes_agree_over_a_cache,
]
NEAR = 0.02  # of the largest logit: what bfloat16 rounds, over the layers of a tiny model


def subject(family: str = "llama", dtype=torch.float64):
    return quantise(Subject(family, "hard_mask", implementations(family)[-1])(dtype))


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rules_hold(rule, family):
    rule(lambda dtype=torch.float64: subject(family, dtype))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_steps_by_the_kernel_equal_the_whole(family):
    """float32: single rows by torch's kernel, many rows by converted weights; routes are those of the whole."""
    model, ids = subject(family, torch.float32), prompt()
    whole = forward(model, ids)
    runs = torch.stack([route.run for route in whole.routes])
    near = NEAR * whole.logits.abs().max()
    steps = in_pieces(replaying(model, runs), ids, None, [1] * ids.shape[1], lambda output: output.logits)
    assert (steps - whole.logits).abs().max() < near
    single = torch.cat([forward(model, ids[i : i + 1], routes=runs[:, i : i + 1]).logits for i in range(len(ids))])
    assert (single - whole.logits).abs().max() < near
    for runtime in ("masked", "grouped", "conditional"):
        with using(model, runtime):
            assert (forward(model, ids, routes=runs).logits - whole.logits).abs().max() < near


def replaying(model, runs):
    """The model as a function that goes through `runs` [routed layers, B, T] from the first token on."""
    place = 0

    def call(input_ids, **kwargs):
        nonlocal place
        first, place = place, place + input_ids.shape[1]
        return model(input_ids, routes=runs[:, :, first:place], **kwargs)

    return call


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
@torch.no_grad()
def test_one_row_calls_nothing_of_what_it_skips(family):
    model, calls = subject(family, torch.float32), Counter()
    for name, module in model.base.named_modules():
        if isinstance(module, Int8Linear):
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    routes = torch.tensor([False, True, False]).view(3, 1, 1)
    model(prompt(1, 1), routes=routes)
    every = {name for name, module in model.base.named_modules() if isinstance(module, Int8Linear)}
    skipped = {name for name in every if ".1." in name or ".3." in name}
    readable = {name for name in skipped if name.endswith(("k_proj", "v_proj"))}
    assert len(skipped) == 14 and len(readable) == 4
    assert set(calls) == every - skipped | readable and set(calls.values()) == {1}


def test_every_matrix_but_the_plugins_is_int8_and_the_model_is_left_as_it_was():
    model = routed(tiny_model("qwen2", tie_word_embeddings=True))  # with biases
    before, ids = logits_of(model), prompt()
    copied = quantise(model)
    assert not [name for name, module in copied.base.named_modules() if type(module) is nn.Linear]
    assert is_quantised(copied) and not is_quantised(model)
    kept, ours = copied.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert kept.data_ptr() == ours.data_ptr() and kept.dtype == torch.float32
    assert copied.base.lm_head.weight.dtype == torch.int8 and not copied.base.config.tie_word_embeddings
    assert model.base.config.tie_word_embeddings and model.config.text_config.tie_word_embeddings
    assert torch.equal(logits_of(model), before)
    for ours, theirs in zip(copied.policy.parameters(), model.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs) and not ours.requires_grad and theirs.requires_grad
    found = copied(ids).logits  # nobody asked for gradients, so none is refused
    assert not found.requires_grad
    assert copied.generate(ids, max_new_tokens=3).shape[1] == ids.shape[1] + 3


@torch.no_grad()
def test_dense_is_the_quantised_base():
    model = quantise(routed())
    with dense(model):
        assert torch.equal(logits_of(model), logits_of(model.base))
    plain = tiny_model("llama", torch.float64)
    with dense(quantise(attach(plain, DropLayers(())))) as untouched:
        found = logits_of(untouched)
    for module in plain.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, Rounded(child))
    torch.testing.assert_close(found, logits_of(plain), rtol=0, atol=1e-10)


class Rounded(nn.Module):
    """The naive twin of Int8Linear: the weight as the numbers that int8 stands for."""

    def __init__(self, linear):
        super().__init__()
        ours = Int8Linear(linear)
        self.weight = nn.Parameter(ours.weight.double() * ours.scale.double()[:, None])

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def test_the_module_is_its_naive_twin():
    linear = nn.Linear(64, 24)
    ours, x = Int8Linear(linear), torch.randn(3, 64)
    with torch.no_grad():
        expected = exact_linear(x.double(), ours.weight, ours.scale) + linear.bias.double()
        torch.testing.assert_close(ours(x).double(), expected, rtol=0.02, atol=0.02)
        assert torch.equal(ours.double()(x.double()), expected)


def test_a_method_can_be_attached_to_a_quantised_base():
    model = quantise(routed(tiny_model("llama", tie_word_embeddings=True)))
    before = logits_of(model)
    other = attach(model, DropLayers((1,)))
    assert other.base.lm_head.weight.dtype == torch.int8 and is_quantised(other)
    with using(other, "full"), using(model, "full"):
        assert torch.equal(logits_of(other), logits_of(model))
    assert torch.equal(logits_of(model), before)


def test_gradients_and_saving_are_refused_by_name(tmp_path):
    model = quantise(routed())
    embeds = model.get_input_embeddings()(prompt()).detach().requires_grad_()
    with pytest.raises(ValueError, match="int8, for inference only.*before laval.quantise"):
        model(inputs_embeds=embeds)
    (tmp_path / "whole").mkdir()
    with pytest.raises(ValueError, match='q_proj.weight is int8.*weights="int8"'):
        model.save_pretrained(tmp_path / "whole")
    assert not list((tmp_path / "whole").iterdir())
    with pytest.raises(ValueError, match="quantised already"):
        quantise(model)
    with pytest.raises(TypeError, match="expected an adaptive model"):
        quantise(tiny_model("llama"))


def test_the_plugin_of_a_quantised_model_can_be_saved(tmp_path):
    model = routed()
    save_plugin(quantise(model), tmp_path / "plugin")
    assert_came_back(load_plugin(tmp_path / "plugin", base=model.base), model)


def test_loading_quantises(tmp_path):
    model = routed()
    model.save_pretrained(tmp_path / "whole")
    loaded = laval.load(tmp_path / "whole", weights="int8")
    assert_came_back(loaded, quantise(model))
    with pytest.raises(ValueError, match="weights is 'int4'; expected \"int8\""):
        laval.load(tmp_path / "whole", weights="int4")


PEAKS = Peaks("cpu", "float32", read_gb_s=10.0, copy_gb_s=10.0, gflop_s=50.0)


def test_the_cost_counts_the_bytes_that_are_there():
    model = routed(router_width=8, adapter_width=6)
    counted, wide = (laval.cost(each, depth=3.2, peaks=PEAKS) for each in (quantise(model), model))
    assert (counted.flops, counted.kv_bytes, counted.cache_bytes) == (wide.flops, wide.kv_bytes, wide.cache_bytes)
    assert counted.dense.decode.weight_bytes == 128 * dense_bytes(quantise(model).base)
    shape, skip = LayerShape.from_config(model.base.config), SkipShape(model.policy.layers, 8, 6)
    plain, int8 = cost(shape, None, prompt=1, new=1, dtype_bytes=4), Int8Shape.of(shape, 4)
    skipping = laval.cost(quantise(model), prompt=1, new=1, run_share=0.0, peaks=PEAKS)
    left = int8.dense_parts()["queries_output"] + int8.dense_parts()["feed_forward"]
    added = 4 * (skip.router(shape) + 3 * shape.hidden * 6)
    untouched = skipping.dense.decode.weight_bytes
    assert skipping.decode.weight_bytes == untouched + len(skip.layers) * (added - left)
    assert untouched < plain.decode.weight_bytes / 3.5


def dense_bytes(base) -> int:
    """Bytes of all that one step reads: layers, final norm, head."""
    parts = [*base.model.layers, base.model.norm, base.lm_head]
    return sum(tensor.nbytes for part in parts for tensor in (*part.parameters(), *part.buffers()))
