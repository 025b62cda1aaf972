"""Quality against measured depth on two held-out texts: the shipped plug-in, ShortGPT, greedy removal, random routes.

    python benchmarks/quality.py [--plugin FOLDER] [--data ../shared/data] [--text runs/text] [--tokens 8192]

Held out: the WikiText-2 test text, and the share of the instruction records that training never saw (chosen by hash).
Static controls choose their layers on text like that of the training. About an hour on two CPU cores; can be
stopped and started again. Writes benchmarks/results/quality.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import laval
from laval.config import load_config
from laval.evaluate.compare import depth_curve
from laval.evaluate.controls import greedy_layers, shortgpt_layers
from laval.evaluate.text import Text, tokenize
from laval.files import atomic_write
from laval.measure import machine_facts
from laval.text import conversation, records, rendered
from laval.train.data import held_out
from laval.train.recipe import Recipe

HERE = Path(__file__).parent
RECIPE = HERE.parent / "recipes" / "smollm2-flexidepth.yaml"
LENGTH = 512
DEPTHS = (28.0, 27.0, 26.0)
EXTRA_DEPTHS = (29.0, 25.0)


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = laval.load(options.plugin)
    orders = static_orders(model, options)
    if options.controls_only:
        return
    records = []
    for name, text in wanted_texts(model.tokenizer, options).items():
        book = HERE / "results" / f"quality-{name}.jsonl"  # stopped runs go on from it
        settings = {"length": LENGTH, "batch": 8, "path": book}
        records += depth_curve(model, {name: text}, DEPTHS, orders=orders, **settings)
        if options.whole_curve:
            records += depth_curve(model, {name: text}, EXTRA_DEPTHS, controls=(), **settings)[1:]
    if options.only is None:
        write(records)


def wanted_texts(tokenizer, options) -> dict[str, Text]:
    readers = {"wikitext2_test": wikitext, "instructions": instructions}
    return {name: read(tokenizer, options) for name, read in readers.items() if options.only in (None, name)}


def write(records: list[dict]) -> None:
    chosen = json.loads((HERE / "results" / "controls.json").read_text())
    with atomic_write(HERE / "results" / "quality.json", "w") as file:
        json.dump({"facts": machine_facts(), **chosen, "records": records}, file, indent=1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", default="smollm2")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--text", type=Path, default=Path("runs/text"), help="what scripts/prepare_text.py wrote")
    parser.add_argument("--tokens", type=int, default=8_192, help="of each text")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--whole-curve", action="store_true", help="depths without controls as well")
    parser.add_argument("--only", choices=("wikitext2_test", "instructions"), help="measure one text, write no table")
    parser.add_argument("--controls-only", action="store_true", help="choose the static controls' layers and stop")
    return parser.parse_args()


def static_orders(model, options) -> dict[str, list[int]]:
    """Which layers ShortGPT and greedy removal take out, in order; chosen once and kept beside the results."""
    path = HERE / "results" / "controls.json"
    if path.exists():
        return json.loads(path.read_text())["orders"]
    batches = calibration(model.tokenizer, options)
    orders = {
        "shortgpt": list(shortgpt_layers(model, batches, 4)),
        "greedy": list(greedy_layers(model, batches, 4)),
    }
    with atomic_write(path, "w") as file:
        json.dump({"orders": orders, "calibration_tokens": sum(batch.numel() for batch in batches)}, file, indent=1)
    return orders


def calibration(tokenizer, options) -> list[torch.Tensor]:
    """2,048 tokens: half WikiText-2 validation, half instructions that are not held out."""
    wiki = tokenize((options.text / "wikitext_valid.txt").read_text("utf-8")[200_000:230_000], tokenizer).ids[:1024]
    chat = tokenize(chats(tokenizer, options, wanted=False, limit=60), tokenizer, special=False).ids[:1024]
    return list(torch.cat([wiki, chat]).view(-1, 4, 256))


def wikitext(tokenizer, options) -> Text:
    return spread((options.data / "eval" / "wikitext2_raw_test.txt").read_text("utf-8"), tokenizer, options.tokens)


def instructions(tokenizer, options) -> Text:
    return spread(chats(tokenizer, options, wanted=True), tokenizer, options.tokens)


def chats(tokenizer, options, wanted: bool, limit: int | None = None) -> str:
    """The instruction records that are held out (or not), mixed in a fixed order, in the model's chat template."""
    sources = [s for s in load_config(Recipe, RECIPE).data.sources if s.hold_out]
    chosen = []
    for source in sources:
        path = options.data / "instruct" / source.path.name
        chosen += [(line, path, n) for n, line in records(path) if held_out(line, source.hold_out) == wanted]
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).tolist()[:limit]
    return "".join(rendered(conversation(*chosen[i]), tokenizer, chosen[i][1]) for i in order)


def spread(written: str, tokenizer, tokens: int) -> Text:
    """Windows of LENGTH tokens taken at even distances from a long text, `tokens` in all."""
    pieces, count = [], tokens // LENGTH
    for i in range(count):
        start = written.index(" ", len(written) * i // count)
        pieces.append(tokenize(written[start : start + 8 * LENGTH], tokenizer, LENGTH, special=False).ids)
    ids = torch.cat(pieces)
    return Text(ids, len(tokenizer.decode(ids[1:]).encode()))


if __name__ == "__main__":
    main()
