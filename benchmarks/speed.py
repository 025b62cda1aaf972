"""Speed of stock, dense and skipping by turns: the shipped plug-in at two depths, random routers at three rates.

    python benchmarks/speed.py [--rounds 20] [--threads 2] [--again] [--only "4 of 30, decode, 8 x 128"]

Random routers skip 4, 8 and 12 of 30 layers: they say what skipping pays, whoever decides. About twenty minutes on
two quiet cores; can be stopped and started again. A break-even rule of this machine is not heard. Longer prefills:
benchmarks/prefill.py. Writes benchmarks/results/speed.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

import laval
from laval.commands.screen import held_out
from laval.files import atomic_write
from laval.measure import machine_facts
from laval.measure.speed import decode_cell, prefill_cell
from laval.models import attach, skipping, using
from laval.skip import FlexiDepth

OUT = Path(__file__).parent / "results" / "speed.json"
DEPTHS = (27.0, 26.0)
SKIPPED = (4, 8, 12)
ROUTED = tuple(range(3, 27))
CELLS = (
    ("decode", 1, 128),
    ("decode", 1, 1024),
    ("decode", 2, 128),
    ("decode", 4, 128),
    ("decode", 8, 128),
    ("prefill", 1, 512),
)
SEED = 0


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    model = laval.load("smollm2")
    ids = held_out(model).ids
    wanted = [(who, *cell) for who in subjects(model, ids) for cell in CELLS]
    wanted = [one for one in wanted if options.only in "{}, {}, {} x {}".format(*one)]
    cells = json.loads(OUT.read_text())["cells"] if OUT.exists() else []
    if not options.again:
        wanted = [one for one in wanted if one not in map(name_of, cells)]
    for one in tqdm(wanted):
        new = measured(subjects(model, ids)[one[0]](), ids, *one, rounds=options.rounds)
        cells = in_order([new, *(cell for cell in cells if name_of(cell) != one)], list(subjects(model, ids)))
        write(cells)


def name_of(cell: dict) -> tuple:
    return cell["who"], cell["cell"], cell["batch"], cell["prompt"]


def in_order(cells: list[dict], whos: list[str]) -> list[dict]:
    """As a table shows them."""
    return sorted(cells, key=lambda cell: (whos.index(cell["who"]), CELLS.index(name_of(cell)[1:])))


def measured(model, ids, who: str, name: str, batch: int, prompt: int, rounds: int) -> dict:
    measure = decode_cell if name == "decode" else prefill_cell
    rounds //= 1 if (name, batch) == ("decode", 1) else 2
    with skipping(model):
        return {"who": who, **measure(model, ids, prompt, rounds=rounds, batch=batch).to_dict()}


def subjects(model, ids) -> dict:
    """Models by name, made when called."""
    plugin = {f"plug-in at {depth:g}": lambda depth=depth: set_to(model, depth) for depth in DEPTHS}
    return plugin | {
        f"random, {skipped} of 30": lambda n=skipped: random_plugin(model.base, ids, n) for skipped in SKIPPED
    }


def set_to(model, depth: float):
    laval.set_depth(model, depth)
    return model


@torch.no_grad()
def random_plugin(base, ids, skipped: int):
    """Routers and adapters as wide as the shipped ones, drawn at random, that skip `skipped` layers a token."""
    torch.manual_seed(SEED)
    model = attach(base, FlexiDepth(ROUTED, adapter_width=192)).eval()
    for router in model.policy.routers.values():
        nn.init.normal_(router.head.weight)
    with using(model, "masked"):
        scores = torch.stack([route.score for route in model(ids[None, :512]).routes])  # [layers, 1, T]
    share = skipped / len(ROUTED)
    for layer, own in zip(ROUTED, scores, strict=True):
        model.policy.thresholds[layer] = float(own.quantile(share))
    return model


def write(cells: list[dict]) -> None:
    found = {"command": "python benchmarks/speed.py", "model": "smollm2", "seed": SEED}
    with atomic_write(OUT, "w") as file:
        json.dump(found | {"machine": machine_facts(), "cells": cells}, file, indent=1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="turns of each (half as many for batches and prefills); 8 tokens a turn when decoding",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--again", action="store_true", help="measure all anew, not only what is missing")
    parser.add_argument("--only", default="", help='of the cells "WHO, NAME, BATCH x TOKENS" those that contain this')
    return parser.parse_args()


if __name__ == "__main__":
    main()
