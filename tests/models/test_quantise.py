"""A quantised model is near the one it was made from, obeys the same rules, and reads nothing of what it skips."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import laval
from laval.compat import cache_argument, output_cache
from laval.measure import LayerShape, Peaks, SkipShape, cost
from laval.measure.storage import Int8Shape
from laval.models import attach, dense, using
from laval.models.plugin import load_plugin, save_plugin
from laval.models.quantise import Int8Linear, is_quantised, quantise
from laval.ops import one_row, some_rows
from laval.ops.int8 import WIDTH, unpack
from laval.ops.one_row import map_of
from laval.skip import DropLayers
from laval.speculate.trained import head_rows
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
NEVER = 1e9  # a threshold that no score reaches
NEAR = 1e-4  # of the largest logit: what float32 rounds, over the layers of a tiny model


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


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_one_row_reads_nothing_of_what_it_skips(family):
    """What it skips is poisoned: whoever reads it gets no number. Over a cache, too, where lanes decode."""
    model, ids = subject(family, torch.float32), prompt(1, 4)
    for layer, tau in ((1, NEVER), (2, -NEVER), (3, NEVER)):
        model.policy.thresholds[layer] = tau
    cache = output_cache(model(ids, use_cache=True))
    plain = forward(model, ids[:, :1]), model(ids[:, :1], **cache_argument(deepcopy(cache)))
    assert [bool(route.run) for output in plain for route in output.routes] == 2 * [False, True, False]
    skipped = [name for name, module in model.base.named_modules() if is_skipped(name, module)]
    for name in skipped:
        poison(model.base.get_submodule(name), readable=2 * 2 * 16 if "qkv" in name else 0)
    found = forward(model, ids[:, :1]), model(ids[:, :1], **cache_argument(cache))
    assert len(skipped) == (8 if family == "phi3" else 10)
    for ours, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(ours.logits, expected.logits)


def is_skipped(name: str, module: nn.Module) -> bool:
    """Whether a matrix belongs to layer 1 or 3, and not only to keys and values."""
    kept = name.endswith((".k_proj", ".v_proj"))
    return isinstance(module, Int8Linear) and (".1." in name or ".3." in name) and not kept


def poison(module: Int8Linear, readable: int) -> None:
    """No output is a number any more, but those in a block with the last `readable`."""
    blocks = (module.out_features - readable) // WIDTH if readable else len(module.weight) // module.in_features
    module.weight[: blocks * module.in_features].view(torch.float32)[:, WIDTH // 4 :] = torch.nan


def test_every_matrix_but_the_plugins_is_int8_and_the_model_is_left_as_it_was():
    model = routed(tiny_model("qwen2", tie_word_embeddings=True))  # with biases
    before, ids = logits_of(model), prompt()
    copied = quantise(model)
    assert not [name for name, module in copied.base.named_modules() if type(module) is nn.Linear]
    assert is_quantised(copied) and not is_quantised(model)
    kept, ours = copied.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert kept.data_ptr() == ours.data_ptr() and kept.dtype == torch.float32
    assert copied.base.lm_head.weight.dtype == torch.uint8 and not copied.base.config.tie_word_embeddings
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
        ours = Int8Linear.of(linear)
        self.weight = nn.Parameter(unpack(ours.weight, ours.scale, linear.in_features).double())

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def test_the_module_is_its_naive_twin():
    linear = nn.Linear(64, 24)
    ours, x = Int8Linear.of(linear), torch.randn(3, 64)
    with torch.no_grad():
        expected = Rounded(linear)(x.double()) + linear.bias.double()
        torch.testing.assert_close(ours(x).double(), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.double()(x.double()), expected, rtol=0, atol=1e-7)  # the bias was float32
        for row, y in zip(x, expected, strict=True):
            torch.testing.assert_close(map_of(ours)(row), y.float(), rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.part(x, 5, 9).double(), expected[:, 5:14], rtol=0, atol=1e-5)


def test_no_change_of_number_type_rounds_the_weights():
    ours, x = Int8Linear.of(nn.Linear(64, 24, bias=False)), torch.randn(3, 64)
    with torch.no_grad():
        expected = ours(x)
        torch.testing.assert_close(deepcopy(ours).bfloat16()(x), expected)
        assert ours.double().scale.dtype == torch.float32


def test_some_rows_of_the_head_are_near_to_those_before():
    model = routed(tiny_model("llama", tie_word_embeddings=True))
    some = torch.tensor([5, 0, 99])
    ours, theirs = (head_rows(each, some) for each in (quantise(model), model))
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert ((ours - theirs).abs() <= 0.501 * theirs.abs().amax(1, keepdim=True) / 127).all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [WIDTH, 2 * WIDTH, 40])
@torch.no_grad()
def test_two_modules_side_by_side(outputs, bias):
    """In one product where blocks end between them, else in two."""
    first, second = (Int8Linear.of(nn.Linear(32, count, bias)) for count in (outputs, 40))
    assert (first.joined(second) is None) == bool(outputs % WIDTH)
    third, x = torch.randn(6, 32), torch.randn(32)
    for given in (third, None):
        a, b, c = one_row.beside(first, second, given)(x)
        torch.testing.assert_close((a, b), (first(x), second(x)))
        assert c is None if given is None else torch.allclose(c, third @ x, atol=1e-5)
    a, b, c = some_rows.beside(first, second, third)(x.expand(3, 32))
    torch.testing.assert_close((a[1], b[1], c[1]), (first(x), second(x), third @ x))
    assert first.joined(nn.Linear(32, 40)) is None


def test_a_method_can_be_attached_to_a_quantised_base():
    model = quantise(routed(tiny_model("llama", tie_word_embeddings=True)))
    before = logits_of(model)
    other = attach(model, DropLayers((1,)))
    assert other.base.lm_head.weight.dtype == torch.uint8 and is_quantised(other)
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
    assert untouched < plain.decode.weight_bytes / 2  # its matrices fill their blocks badly


def test_a_model_of_real_size_has_little_more_than_a_quarter_of_the_bytes():
    sizes = {"hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64, "vocab": 49152}
    shape = LayerShape(**sizes, layers=30, tied_head=True, windows=(None,) * 30)
    wide = cost(shape, None, prompt=0, new=1, dtype_bytes=4).decode.weight_bytes
    packed = cost(Int8Shape.of(shape, 4), None, prompt=0, new=1, dtype_bytes=1).decode.weight_bytes
    assert 3.6 < wide / packed < 3.7


def dense_bytes(base) -> int:
    """Bytes of all that one step reads: layers, final norm, head."""
    parts = [*base.model.layers, base.model.norm, base.lm_head]
    return sum(tensor.nbytes for part in parts for tensor in (*part.parameters(), *part.buffers()))
