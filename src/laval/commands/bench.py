"""laval bench: dense and skipping by turns, and what the cost model holds possible."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from rich.table import Table
from typer import Option

from laval.commands.screen import (
    Depth,
    Json,
    Model,
    Screen,
    check_room,
    context_of,
    held_out,
    open_model,
    screen,
    tokenizer_of,
)
from laval.evaluate import read_text
from laval.measure import machine_facts
from laval.measure.speed import Cell, decode_cell, prefill_cell


def bench(
    model: Model,
    depth: Depth = None,
    text: Annotated[Path | None, Option(help="Text to decode. Default: a small one of ours.")] = None,
    prompt: Annotated[int, Option(min=1, help="Tokens before the first decoded one.")] = 128,
    prefill: Annotated[int, Option(min=2, help="Tokens of the prefill.")] = 512,
    rounds: Annotated[int, Option(min=1, help="Turns of each; 8 tokens a turn when decoding.")] = 12,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Seconds of dense and skipping in one paired run, beside the ideal."""
    with screen(json) as out:
        if threads:
            torch.set_num_threads(threads)
        adaptive = open_model(model, depth, out)
        check_room(prompt, 8 * (rounds + 1), context_of(adaptive))
        check_room(prefill, 0, context_of(adaptive))
        read = held_out(adaptive) if text is None else read_text(text, tokenizer_of(adaptive))
        with out.console.status("decoding by turns"):
            cells = [decode_cell(adaptive, read.ids, prompt, rounds=rounds)]
        with out.console.status("prefill by turns"):
            cells.append(prefill_cell(adaptive, read.ids, prefill, rounds))
        machine = machine_facts(adaptive.device, adaptive.base.dtype)
        show(out, cells, machine)
        out.document = {"model": model, "machine": machine, "cells": [cell.to_dict() for cell in cells]}


def show(out: Screen, cells: list[Cell], machine: dict) -> None:
    out.say(cell_table(cells))
    out.say(
        f"\n[dim]{machine['device']}, {machine['threads']} threads, {machine['dtype']}; {cells[0].times.rounds} "
        "rounds by turns, batch 1. Above 1 is faster than dense; ideal: what the cost model holds possible.[/]"
    )


def cell_table(cells: list[Cell]) -> Table:
    heads = ("", "tokens", "dense", "skipping", "ratio", "95 %", "ideal", "depth")
    table = Table(*heads, box=None, padding=(0, 3, 0, 0), header_style="dim")
    for cell in cells:
        per = " ms/token" if cell.name == "decode" else " ms"
        table.add_row(
            cell.name,
            str(cell.new or cell.prompt),
            *(f"{1000 * cell.seconds(name):.1f}{per}" for name in ("dense", "skipping")),
            f"[bold]{cell.ratio.median:.3f}[/]",
            f"{cell.ratio.low:.3f} to {cell.ratio.high:.3f}",
            f"{cell.ideal:.3f}",
            f"{cell.mean_depth:.1f}",
        )
    return table
