"""int8 weights against float32: the products alone, perplexity on held-out text, and decoding by turns.

    python benchmarks/int8.py {products,perplexity,decode} [--data ../shared/data] [--tokens 8192] [--threads N]

products: milliseconds of one product, weights out of cache, by rows. perplexity: dense and skipping, WikiText-2 test.
decode: full and auto of both, one row, the same tokens; then int8 alone at random routes of 4, 8 and 12 layers, beside
the ideal. Each writes its part of benchmarks/results/int8.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import laval
from laval.evaluate import per_token, perplexity, ratio_interval
from laval.evaluate.text import Text, tokenize
from laval.files import atomic_write
from laval.measure import machine_facts, paired
from laval.measure.speed import Walk, decode_cell
from laval.ops import int8, rows
from laval.skip import RandomRoutes

RESULTS = Path(__file__).parent / "results" / "int8.json"
SHAPES = ((576, 1536), (1536, 576), (576, 576), (576, 192), (576, 49152))
ROWS = (1, 2, 4, 8, 32, 512)
MORE_THAN_CACHE = 64_000_000  # weights in all copies of one matrix
LENGTH, PROMPT, STEPS = 512, 64, 8


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    with torch.no_grad():
        found = {"products": products, "perplexity": quality, "decode": decoding}[options.part](options)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with atomic_write(RESULTS, "w") as file:
        json.dump(kept | {options.part: {"facts": machine_facts(), "records": found}}, file, indent=1)
    for record in found:
        print(record)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("products", "perplexity", "decode"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


# Products.


def products(options) -> list[dict]:
    found = []
    for inputs, outputs in SHAPES:
        copies = min(60, max(2, MORE_THAN_CACHE // (inputs * outputs)))
        weight = torch.randn(outputs, inputs)
        small, scale = int8.quantise(weight)
        stores = [weight.clone() for _ in range(copies)], [small.clone() for _ in range(copies)]
        for count in ROWS if outputs < 10_000 else ROWS[:-1]:
            found.append({"inputs": inputs, "outputs": outputs, "rows": count} | product(stores, scale, count))
    return found


def product(stores, scale, count: int) -> dict:
    """Median milliseconds of each way to multiply `count` rows."""
    wide, small = stores
    x = torch.randn(count, wide[0].shape[1])
    narrow = x.bfloat16()
    each = wide if count < 512 else wide[:4]

    def all_of(function, weights) -> None:
        for weight in weights[: len(each)]:
            function(weight)

    times = paired(
        {
            "float32": lambda: all_of(lambda w: rows.linear(x, w), wide),
            "int8": lambda: all_of(lambda w: int8.linear(x, w, scale), small),
            "few_rows": lambda: all_of(lambda w: int8.few_rows_linear(narrow, w, scale), small),
            "many_rows": lambda: all_of(lambda w: int8.many_rows_linear(narrow, w, scale), small),
        }
        if count <= 32
        else {
            "float32": lambda: all_of(lambda w: rows.linear(x, w), wide),
            "int8": lambda: all_of(lambda w: int8.linear(x, w, scale), small),
        },
        rounds=5,
        seconds_limit=1.0,
    )
    return {name: 1000 * times.median(name) / len(each) for name in times.seconds} | {
        "times_faster": times.ratio("int8").median
    }


# Quality.


def quality(options) -> list[dict]:
    """Perplexity of both number types, dense and skipping, and its ratio to float32's with a 95 % interval."""
    wide = laval.load("smollm2")
    models = {"float32": wide, "int8": laval.quantise(wide)}
    text = spread(
        (options.data / "eval" / "wikitext2_raw_test.txt").read_text("utf-8"), wide.tokenizer, options.tokens
    )
    found = []
    for runtime in ("dense", "auto"):
        nats = {}
        for name, model in models.items():
            with laval.models.using(model, runtime):
                nats[name] = per_token(model, text, LENGTH)
                depth = perplexity(model, Text(text.ids[: 2 * LENGTH], None), LENGTH).mean_depth
            found.append({"weights": name, "runtime": runtime, "perplexity": float(nats[name].mean().exp())})
            ratio = ratio_interval(nats[name], nats["float32"])
            found[-1] |= {"ratio": ratio.ratio, "interval": [ratio.low, ratio.high], "mean_depth_of_1024": depth}
    return found


def wikitext(options) -> str:
    return (options.data / "eval" / "wikitext2_raw_test.txt").read_text("utf-8")


def spread(written: str, tokenizer, tokens: int) -> Text:
    """Windows of LENGTH tokens taken at even distances from a long text, `tokens` in all."""
    pieces, count = [], tokens // LENGTH
    for i in range(count):
        start = written.index(" ", len(written) * i // count)
        pieces.append(tokenize(written[start : start + 8 * LENGTH], tokenizer, LENGTH, special=False).ids)
    return Text(torch.cat(pieces), None)


# Decoding.


def decoding(options) -> list[dict]:
    wide = laval.load("smollm2")
    small = laval.quantise(wide)
    text = tokenize(wikitext(options)[:8000], wide.tokenizer).ids
    found = [both(wide, small, text, options.rounds)]
    for skipped in (4, 8, 12):
        model = random_routes(small, skipped)
        cell = decode_cell(model, text, PROMPT, STEPS, options.rounds)
        found.append({"skipped": skipped, "of_ideal": cell.ratio.median / cell.ideal} | cell.to_dict())
    return found


def both(wide, small, text, rounds: int) -> dict:
    """Milliseconds per token of full and auto, in float32 and int8, on the same tokens by turns."""
    ids = text[None, : PROMPT + STEPS * (rounds + 1)]
    models = {"float32": wide, "int8": small}
    ways = {
        f"{name} {runtime}": Walk(model, runtime, ids, PROMPT, STEPS)
        for runtime in ("full", "auto")
        for name, model in models.items()
    }
    times = paired(ways, rounds, warmup=1)
    record = {name: 1000 * times.median(name) / STEPS for name in ways}
    ratio = times.ratio("int8 full")
    return {"ms_per_token": record, "int8_full_times_faster": [ratio.median, ratio.low, ratio.high]}


def random_routes(model, skipped: int):
    """The quantised base where each token skips `skipped` layers on average, none of them the first."""
    layers = model.config.text_config.num_hidden_layers
    return laval.attach(model, RandomRoutes(tuple(range(1, layers)), rate=1 - skipped / (layers - 1)))


if __name__ == "__main__":
    main()
