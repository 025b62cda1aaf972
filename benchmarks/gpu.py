"""Stock, dense and skipping by turns on one GPU: random weights of two published shapes, random routes, bf16.

    benchmarks/gpu.sh [--batch 1 8 32] [--length 512 2048] [--seconds 400] [--no-graphs]
    python benchmarks/gpu.py --device cpu --quick      # tiny sizes: that the script works

UNTESTED ON CUDA so far: it has run on a CPU only. Random routers skip as large a share of the layers as 4, 8 and 12
of 30, whatever the token; they say what skipping pays, whoever decides. `generate` is timed whole, beside stock with a
dynamic cache and with a static one, which transformers compiles into CUDA graphs (mode reduce-overhead): a failure of
that is written down and ends nothing. The GPU is waited for before and after each turn. No new cell starts after
--seconds. Writes benchmarks/results/gpu.json after every cell.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import laval
from laval.files import atomic_write
from laval.measure import machine_facts, paired
from laval.measure.speed import decode_cell, prefill_cell
from laval.models import skipping, using

OUT = Path(__file__).parent / "results" / "gpu.json"
SHARES = (4 / 30, 8 / 30, 12 / 30)
COMMON = {"tie_word_embeddings": True, "max_position_embeddings": 8192}
SHAPES = {
    "SmolLM2 135M": dict(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
    ),
    "Llama 3.2 1B": dict(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
}
TINY = {
    "tiny": dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
    )
}
DECODED, NEW, ROUNDS, CELL_SECONDS = 128, 64, 10, 4.0


def main() -> None:
    options = arguments()
    began, cells, left_out = time.monotonic(), [], []
    with torch.no_grad():
        for name, measure in plan(options):
            if time.monotonic() - began > options.seconds:
                left_out.append(name)
                continue
            cells.append(outcome(measure) | {"cell": name})
            print(line(cells[-1]), flush=True)
            write(options, cells, left_out, time.monotonic() - began)
    write(options, cells, left_out, time.monotonic() - began)
    if left_out:
        print(f"left out after {options.seconds:g} seconds: {', '.join(left_out)}")


def plan(options) -> Iterator[tuple[str, Callable[[], dict]]]:
    """All cells by name, in the order of what one wants to know first within a model."""
    for shape, sizes in (TINY if options.quick else SHAPES).items():
        model = random_model(sizes, options)
        ids = random_ids(sizes, max(options.length), options.device)
        for batch in options.batch:
            yield f"{shape}, generate, batch {batch}", partial(generated, model, ids, batch, options)
        for share in SHARES:
            random_routes(model, ids, share)
            who = f"{shape}, {share:.0%} skipped"
            for batch in options.batch:
                yield f"{who}, decode, batch {batch}", partial(decoded, model, ids, batch, options)
            for length in options.length:
                for batch in options.batch:
                    yield (
                        f"{who}, prefill {length}, batch {batch}",
                        partial(prefilled, model, ids, length, batch, options),
                    )
        del model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def outcome(measure: Callable[[], dict]) -> dict:
    """What was measured; or the error, for instance of memory: other cells may still be possible."""
    try:
        return measure()
    except RuntimeError as error:
        return {"failed": first_line(error)}


# Models.


def random_model(sizes: dict, options):
    """A stock model on the device, with routers and adapters on most of its layers."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **COMMON), dtype=options.dtype)
    base.generation_config.eos_token_id = None
    layers = sizes["num_hidden_layers"]
    routed = tuple(range(layers // 10, layers - layers // 10))
    model = laval.attach(base.to(options.device), laval.FlexiDepth(routed)).to(options.device, options.dtype).eval()
    for router in model.policy.routers.values():
        nn.init.normal_(router.head.weight)
    return model


def random_routes(model, ids: torch.Tensor, share: float) -> None:
    """Thresholds that skip `share` of all layers for a token of ids [N], wherever the routers are."""
    with using(model, "masked"), skipping(model):
        scores = [route.score.float().flatten() for route in model(ids[None, :512], use_cache=False).routes]
    part = share * len(model.backbone.blocks) / len(scores)
    model.policy.thresholds = {
        layer: float(own.quantile(part)) for layer, own in zip(model.policy.layers, scores, strict=True)
    }


def random_ids(sizes: dict, length: int, device: str) -> torch.Tensor:
    """Tokens [N] enough for several sequences of their own."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(sizes["vocab_size"], (8 * length,), generator=generator).to(device)


# Cells.


def decoded(model, ids, batch: int, options) -> dict:
    steps, rounds = (2, 1) if options.quick else (8, ROUNDS)
    prompt = 8 if options.quick else DECODED
    found = decode_cell(model, ids.cpu(), prompt, steps, rounds, CELL_SECONDS, batch)
    return found.to_dict()


def prefilled(model, ids, length: int, batch: int, options) -> dict:
    return prefill_cell(model, ids.cpu(), length, 1 if options.quick else ROUNDS, CELL_SECONDS, batch).to_dict()


def generated(model, ids, batch: int, options) -> dict:
    """Whole calls of generate by turns: stock with either cache, dense by laval."""
    prompt, new = (8, 4) if options.quick else (DECODED, NEW)
    text = ids[: batch * prompt].view(batch, prompt)
    limits = {"attention_mask": torch.ones_like(text), "max_new_tokens": new, "do_sample": False}

    def dense():
        with using(model, "full"):
            model.generate(text, **limits)

    ways = {"stock": lambda: model.base.generate(text, **limits), "dense": dense}
    graphs = {"failed": "not asked for"}
    if options.graphs:
        static = partial(model.base.generate, text, cache_implementation="static", **limits)
        graphs = first_call(static)
        if "failed" not in graphs:
            ways["stock, static cache"] = static
    times = paired(ways, 1 if options.quick else 5, warmup=1, seconds_limit=2 * CELL_SECONDS)
    return {"batch": batch, "prompt": prompt, "new": new, "graphs": graphs, "times": times.to_dict()}


def first_call(call: Callable[[], object]) -> dict:
    """Seconds of the first call, compiling and capturing included; or why there is none."""
    start = time.perf_counter()
    try:
        call()
    except Exception as error:  # compilers fail in many ways, none of which is ours to mend
        return {"failed": first_line(error)}
    return {"first_call_seconds": time.perf_counter() - start}


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


# Keeping and showing.


def line(cell: dict) -> str:
    if "failed" in cell:
        return f"{cell['cell']:50} {cell['failed']}"
    if "times" in cell:
        own = cell["times"]["functions"]
        found = ", ".join(f"{name} {1e3 * one['median']:.1f} ms ({one['ratio']:.2f}x)" for name, one in own.items())
        failed = cell["graphs"].get("failed")
        return f"{cell['cell']:50} {found}" + f"; static cache: {failed}" * bool(failed)
    seconds = ", ".join(f"{name} {1e3 * each:.2f} ms" for name, each in cell["seconds"].items())
    low, high = cell["interval"]
    return f"{cell['cell']:50} {seconds}; {cell['ratio']:.3f}x ({low:.3f} to {high:.3f}), ideal {cell['ideal']:.3f}"


def write(options, cells: list[dict], left_out: list[str], seconds: float) -> None:
    found = {
        "command": "benchmarks/gpu.sh",
        "machine": machine_facts(options.device, options.dtype),
        "quick": options.quick,
        "seconds": seconds,
        "left_out": left_out,
        "cells": cells,
    }
    with atomic_write(options.out, "w") as file:
        json.dump(found, file, indent=1)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048], help="tokens of a prefill")
    parser.add_argument("--seconds", type=float, default=400, help="no new cell starts later")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True, help="time static caches too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(given)
    if options.quick:
        options.batch, options.length = [1, 2], [8, 16]
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; expected one, or --device cpu --quick for a try of the script")
    options.dtype = getattr(torch, options.dtype)
    return options


if __name__ == "__main__":
    main()
