"""int8 weights against float32: the products alone, perplexity on held-out text, and decoding by turns.

    python benchmarks/int8.py {products,perplexity,decode} [--data ../shared/data] [--tokens 8192] [--threads N]

products: milliseconds of one product, weights out of cache, by rows. perplexity: dense and skipping, WikiText-2 test.
decode: every layer and the shipped plug-in in both number types on the same tokens; then int8 alone, dense and
skipping, with the subjects of benchmarks/speed.py, beside the ideal. It can be stopped and started again, and
--cells N measures the next N that are missing. Each part writes its own in benchmarks/results/int8.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from speed import subjects
from tqdm import tqdm

import laval
from laval.commands.screen import held_out
from laval.evaluate import ratio_interval
from laval.evaluate.perplexity import read_through
from laval.evaluate.text import Text, tokenize
from laval.files import atomic_write
from laval.measure import machine_facts, paired
from laval.measure.speed import Walk, decode_cell
from laval.ops import int8, rows

RESULTS = Path(__file__).parent / "results" / "int8.json"
SHAPES = ((576, 1536), (1536, 576), (576, 576), (576, 384), (576, 49152))
ROWS = (1, 2, 4, 8, 32, 512)
MORE_THAN_CACHE = 64_000_000  # weights in all copies of one matrix
LENGTH, PROMPT, STEPS, DEPTH = 512, 128, 8, 26.0
BOTH = "int8 over float32"


@torch.no_grad()
def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    for found in {"products": products, "perplexity": quality, "decode": decoding}[options.part](options):
        write(options.part, found)
        print(found[-1])


def write(part: str, records: list[dict]) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with atomic_write(RESULTS, "w") as file:
        json.dump(kept | {part: {"facts": machine_facts(), "records": records}}, file, indent=1)


def known(part: str) -> list[dict]:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return kept.get(part, {"records": []})["records"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("products", "perplexity", "decode"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cells", type=int, default=100, help="Measure so many at most, and stop.")
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT", help="Cells whose name has one of these.")
    parser.add_argument("--again", action="store_true", help="Measure all anew, not only what is missing.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


# Products.


def products(options):
    found = []
    for inputs, outputs in SHAPES:
        copies = min(60, max(2, MORE_THAN_CACHE // (inputs * outputs)))
        weight = torch.randn(outputs, inputs)
        table, scale = int8.pack(weight)
        stores = [weight.clone() for _ in range(copies)], [table.clone() for _ in range(copies)]
        for count in ROWS if outputs < 10_000 else ROWS[:-1]:
            found.append({"inputs": inputs, "outputs": outputs, "rows": count} | product(stores, scale, count))
            yield found


def product(stores, scale, count: int) -> dict:
    """Median milliseconds of each way to multiply `count` rows."""
    wide, small = (store if count < 512 else store[:4] for store in stores)
    x = torch.randn(count, wide[0].shape[1])
    ways = {"float32": (wide, lambda weight: rows.linear(x, weight))}
    ways["int8"] = small, lambda table: int8.linear(x, table, scale)
    if count <= 32:
        ways["few_rows"] = small, lambda table: int8.few_rows_linear(x, table)
        ways["many_rows"] = small, lambda table: int8.many_rows_linear(x, table)
    calls = {name: lambda store=store, way=way: [way(each) for each in store] for name, (store, way) in ways.items()}
    times = paired(calls, rounds=5, seconds_limit=1.0)
    found = {name: 1000 * times.median(name) / len(wide) for name in times.seconds}
    return found | {"times_faster": times.ratio("int8").median}


# Quality.


def quality(options):
    """Perplexity of both number types, dense and skipping, and its ratio to float32's with a 95 % interval."""
    wide = laval.load("smollm2")
    models = {"float32": wide, "int8": laval.quantise(wide)}
    written = (options.data / "eval" / "wikitext2_raw_test.txt").read_text("utf-8")
    text = spread(written, wide.tokenizer, options.tokens)
    found = []
    for runtime in ("dense", "auto"):
        nats = {}
        for name, model in models.items():
            with laval.models.using(model, runtime):
                nats[name], rates = read_through(model, text, LENGTH, None, 4, True)
            ratio = ratio_interval(nats[name], nats["float32"])
            record = {"weights": name, "runtime": runtime, "tokens": options.tokens, "mean_depth": float(rates.sum())}
            found.append(record | {"perplexity": float(nats[name].mean().exp()), "ratio": ratio.ratio})
            found[-1]["interval"] = [ratio.low, ratio.high]
            yield found


def spread(written: str, tokenizer, tokens: int) -> Text:
    """Windows of LENGTH tokens taken at even distances from a long text, `tokens` in all."""
    pieces, count = [], tokens // LENGTH
    for i in range(count):
        start = written.index(" ", len(written) * i // count)
        pieces.append(tokenize(written[start : start + 8 * LENGTH], tokenizer, LENGTH, special=False).ids)
    return Text(torch.cat(pieces), None)


# Decoding.


def decoding(options):
    wide = laval.load("smollm2")
    small = laval.quantise(wide)
    ids = held_out(wide).ids
    found = [] if options.again else known("decode")
    measured = {cell["who"] for cell in found}
    wanted = {BOTH: lambda: both(wide, small, ids, options.rounds)}
    for who, make in subjects(small, ids).items():
        wanted[who] = lambda make=make: alone(make(), ids, options.rounds)
    chosen = [who for who in wanted if any(text in who for text in options.only)]
    for who in tqdm([who for who in chosen if who not in measured][: options.cells]):
        found.append({"who": who} | wanted[who]())
        yield found


def alone(model, ids, rounds: int) -> dict:
    """Dense and skipping in int8, and the share of the ideal with the ends of its interval."""
    cell = decode_cell(model, ids, PROMPT, STEPS, rounds)
    ends = cell.ratio.low / cell.ideal, cell.ratio.high / cell.ideal
    return cell.to_dict() | {"share_interval": ends}


def both(wide, small, ids, rounds: int) -> dict:
    """Milliseconds per token of every layer and of the plug-in, in both number types, on the same tokens by turns."""
    ids = ids[None, : PROMPT + STEPS * (rounds + 1)]
    models = {"float32": wide, "int8": small}
    for model in models.values():
        laval.set_depth(model, DEPTH)
    ways = {
        f"{name} {runtime}": Walk(model, runtime, ids, PROMPT, STEPS)
        for runtime in ("full", "auto")
        for name, model in models.items()
    }
    times = paired(ways, rounds, warmup=1)
    ratios = {name: times.ratio(name) for name in ways}
    return {
        "ms_per_token": {name: 1000 * times.median(name) / STEPS for name in ways},
        "times_faster_than_float32_full": {name: [r.median, r.low, r.high] for name, r in ratios.items()},
        "rounds": times.rounds,
    }


if __name__ == "__main__":
    main()
