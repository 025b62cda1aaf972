from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import Gemma2Config, LlamaConfig, LlamaForCausalLM, MistralConfig

from laval.measure import LayerShape, Peaks, SkipShape, cost, dense_work, run_work, skip_work
from laval.measure.cost import keys_seen

LLAMA_8B = LayerShape(4096, 14336, 32, 8, 128, 128256, 32, False, (None,) * 32)
FLEXIDEPTH = SkipShape(tuple(range(16, 32)), router_width=256, adapter_width=896, folded=False)
MEMORY_BOUND = Peaks("made up", "bfloat16", read_gb_s=1.0, copy_gb_s=1.0, gflop_s=1e9)


def tiny(**changes):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 50}
    return LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, **changes)


def test_llama_8b_has_its_published_size():
    assert LLAMA_8B.parameters == 8_030_261_248


def test_plug_in_has_its_published_size():
    router, adapter = FLEXIDEPTH.router(LLAMA_8B), FLEXIDEPTH.skip_parts(LLAMA_8B)["adapter"]
    assert (router, adapter, 16 * (router + adapter)) == (2_101_504, 11_010_048, 209_784_832)


def test_a_skipped_layer_costs_a_tenth():
    share = skip_work(LLAMA_8B, FLEXIDEPTH).flops / dense_work(LLAMA_8B).flops
    assert round(100 * share, 1) == 9.9
    folded = replace(FLEXIDEPTH, folded=True)
    assert skip_work(LLAMA_8B, folded).weights == skip_work(LLAMA_8B, FLEXIDEPTH).weights - 4096 * 257 + 256


@pytest.mark.parametrize(("skipped", "saved", "speedup"), [(4, 10.1, 1.11), (6.25, 16.1, 1.19), (8, 20.7, 1.26)])
def test_ceiling_of_llama_8b(skipped, saved, speedup):
    sizes = {"batch": 1, "prompt": 0, "new": 1, "dtype_bytes": 2, "peaks": MEMORY_BOUND}
    got = cost(LLAMA_8B, FLEXIDEPTH, 1 - skipped / 16, **sizes)
    assert round(100 * got.saved_share, 1) == saved
    assert round(got.ideal_speedup, 2) == round(got.phase_speedup("decode"), 2) == speedup


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_of_a_real_model(tied):
    config = tiny(tie_word_embeddings=tied)
    assert LayerShape.from_config(config).parameters == LlamaForCausalLM(config).num_parameters()


@pytest.mark.parametrize("tokens", [1, 7])
def test_prefill_flops_of_a_real_model(tokens):
    model = LlamaForCausalLM(tiny(attn_implementation="eager")).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(2, tokens, dtype=torch.long), logits_to_keep=1)
    counted = counter.get_total_flops()
    masked = 3 * 2 * 4 * 32 * tokens * (tokens - 1) // 2  # eager attention also scores the future
    ours = cost(LayerShape.from_config(model.config), batch=2, prompt=tokens, new=0)
    assert counted - masked == ours.prefill.flops == ours.flops


def test_windows_follow_the_family():
    mixed = Gemma2Config(num_hidden_layers=4, sliding_window=8)
    assert LayerShape.from_config(mixed).windows == (8, None, 8, None)
    assert LayerShape.from_config(MistralConfig(num_hidden_layers=2, sliding_window=8)).windows == (8, 8)
    assert LayerShape.from_config(tiny()).windows == (None,) * 3


@given(st.integers(0, 30), st.integers(0, 30), st.none() | st.integers(1, 20))
def test_keys_seen_is_the_plain_sum(start, count, window):
    naive = sum(min(n, window or n) for n in range(start + 1, start + count + 1))
    assert keys_seen(start, count, window) == naive


def test_decode_is_the_sum_of_its_tokens():
    shape, skip = LayerShape.from_config(tiny()), SkipShape((1,), router_width=2, adapter_width=3)
    got = cost(shape, skip, 0.25, prompt=5, new=3, dtype_bytes=4, kv_dtype_bytes=2).decode
    flops = weights = kv = 0
    for seen in (6, 7, 8):
        parts = [dense_work(shape, seen)] * 2, [run_work(shape, skip, seen)], [skip_work(shape, skip)]
        for share, works in zip((1, 0.25, 0.75), parts, strict=True):
            flops += sum(share * work.flops for work in works)
            weights += sum(share * work.weights for work in works)
            kv += sum(share * work.kv for work in works)
    assert got.flops == pytest.approx(flops + 3 * 2 * 50 * 32)
    assert got.weight_bytes == pytest.approx(4 * (weights + 3 * (50 * 32 + 32)))
    assert got.kv_bytes == pytest.approx(2 * kv)


def test_prefill_writes_and_reads_each_key_once_and_the_cache_stays():
    shape = replace(LayerShape.from_config(tiny()), windows=(4, None, None))
    got = cost(shape, batch=2, prompt=10, new=0, dtype_bytes=2)
    assert got.prefill.kv_bytes == 2 * 2 * 10 * 3 * shape.kv_width * 2
    assert got.cache_bytes == 2 * (4 + 10 + 10) * shape.kv_width * 2


def test_batches_read_what_any_row_runs():
    shape, skip = LayerShape.from_config(tiny()), SkipShape((0, 1, 2), router_width=2, adapter_width=3)

    def weights(batch, share):
        return cost(shape, skip, share, batch=batch, prompt=0, new=1, dtype_bytes=1).decode.weight_bytes

    run, rest = run_work(shape, skip).weights, skip_work(shape, skip).weights
    adapter, head = skip.skip_parts(shape)["adapter"], 50 * 32 + 32
    assert weights(4, 1.0) == 3 * run + head and weights(4, 0.0) == 3 * rest + head
    either = 1 - 0.5**2  # two rows, an even chance each
    common = rest - adapter
    assert weights(2, 0.5) == 3 * (common + either * (run - common) + either * adapter) + head


def test_dropping_layers_whole_costs_nothing():
    shape = LayerShape.from_config(tiny())
    got = cost(shape, SkipShape((1, 2), keeps_kv=False), 0.0, prompt=4, new=2)
    alone = cost(replace(shape, layers=1, windows=(None,)), prompt=4, new=2)
    assert (got.prefill, got.decode, got.cache_bytes) == (alone.prefill, alone.decode, alone.cache_bytes)


def test_shares_per_layer_average_like_one_share_at_batch_one():
    shape, skip = LayerShape.from_config(tiny()), SkipShape((1, 2), 2, 3)
    one = cost(shape, skip, 0.5, prompt=0, new=4, peaks=MEMORY_BOUND)
    each = cost(shape, skip, [0.2, 0.8], prompt=0, new=4, peaks=MEMORY_BOUND)
    assert each.ideal_seconds == pytest.approx(one.ideal_seconds)


def test_roofline_takes_the_slower_side_of_each_phase():
    got = cost(LLAMA_8B, prompt=512, new=8, peaks=Peaks("x", "float32", 1.0, 1.0, 1.0))
    assert got.ideal_seconds == pytest.approx(got.prefill.flops / 1e9 + got.decode.bytes / 1e9)
    assert cost(LLAMA_8B, prompt=1, new=1).ideal_speedup is None


def test_to_dict_holds_the_dense_twin():
    record = cost(LLAMA_8B, FLEXIDEPTH, 0.5, prompt=4, new=4, peaks=MEMORY_BOUND).to_dict()
    assert record["dense"]["ideal_seconds"] / record["ideal_seconds"] == record["ideal_speedup"] > 1
    assert record["prefill"]["bytes"] + record["decode"]["bytes"] == record["bytes"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_share": 1.5}, "run_share=1.5"),
        ({"run_share": [0.5]}, "1 shares: expected one, or 16"),
        ({"batch": 0}, "batch=0"),
        ({"prompt": -1}, "prompt=-1"),
        ({"skip": SkipShape((40,))}, "layers 0 to 31"),
    ],
)
def test_bad_sizes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        cost(**({"shape": LLAMA_8B, "skip": FLEXIDEPTH, "prompt": 1, "new": 1} | changes))


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match=r"layers=\(1, 1\)"):
        SkipShape((1, 1))
    with pytest.raises(ValueError, match="adapter_width=-1"):
        SkipShape((1,), adapter_width=-1)
    with pytest.raises(ValueError, match="intermediate_size is missing"):
        LayerShape.from_config(type("Odd", (), {"num_attention_heads": 1, "hidden_size": 1, "num_hidden_layers": 1}))
