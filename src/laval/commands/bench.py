"""laval bench: dense and skipping by turns, and what the cost model holds possible."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Option

from laval.commands.screen import (
    Depth,
    Json,
    Model,
    Screen,
    Weights,
    check_room,
    context_of,
    held_out,
    open_model,
    screen,
    tokenizer_of,
)
from laval.files import atomic_write

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.measure.speed import Cell
    from laval.runtime import BreakEven

SECONDS = 60  # of --learn


def bench(
    model: Model,
    depth: Depth = None,
    weights: Weights = None,
    text: Annotated[Path | None, Option(help="Text to read. Default: a small one of ours.")] = None,
    batch: Annotated[str, Option(metavar="N,N...", help="Sequences side by side when decoding.")] = "1",
    prompt: Annotated[str, Option(metavar="N,N...", help="Tokens before the first decoded one.")] = "128",
    prefill: Annotated[str, Option(metavar="N,N...", help="Tokens of the prefills.")] = "512",
    rounds: Annotated[int, Option(min=1, help="Turns of each; 8 tokens a turn when decoding.")] = 12,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.", show_default=False)] = None,
    plot: Annotated[Path | None, Option(help="Write measured against ideal as an SVG picture.")] = None,
    learn: Annotated[
        bool,
        Option("--learn", help="Measure for a minute where skipping loses here, and turn it off there from now on."),
    ] = False,
    json: Json = False,
) -> None:
    """Seconds of stock, dense and skipping in paired runs, beside the ideal."""
    with screen(json) as out:
        import torch

        from laval.evaluate import read_text
        from laval.measure import machine_facts
        from laval.measure.speed import decode_cell, prefill_cell

        if threads:
            torch.set_num_threads(threads)
        adaptive = open_model(model, depth, out, weights)
        read = held_out(adaptive) if text is None else read_text(text, tokenizer_of(adaptive))
        if learn:
            rule = learned(out, adaptive, read.ids)
            out.document = {"model": model, "break_even": asdict(rule)}
            return
        plan = planned(numbers("batch", batch), numbers("prompt", prompt), numbers("prefill", prefill))
        for name, _, length in plan:
            check_room(length, 8 * (rounds + 1) * (name == "decode"), context_of(adaptive))
        cells = []
        for name, rows, length in plan:
            with out.console.status(f"{name}, {rows} x {length} tokens, by turns"):
                measure = decode_cell if name == "decode" else prefill_cell
                cells.append(measure(adaptive, read.ids, length, rounds=rounds, batch=rows))
        machine = machine_facts(adaptive.device, adaptive.base.dtype) | {"weights": weights}
        show(out, cells, machine)
        if plot is not None:
            write_plot(plot, cells)
            out.say(f"[dim]measured against ideal: {plot}[/]")
        out.document = {"model": model, "machine": machine, "cells": [cell.to_dict() for cell in cells]}


def learned(out: Screen, model, ids) -> BreakEven:
    """The break-even rule of this machine, kept and shown."""
    from laval.measure.learn import learn as learn_rule
    from laval.models.learned import keep, rules_file

    with out.console.status("learning where skipping loses on this machine: about a minute"):
        rule = learn_rule(model, ids, seconds=SECONDS)
    keep(model, rule)
    out.say(rule_table(rule))
    out.say(
        f"\n[dim]At {rule.depth:.2f} layers per token. Kept in {rules_file()}; laval.load reads it.\nWhere skipping "
        "loses, the runtime auto runs every layer.[/]"
    )
    return rule


def rule_table(rule: BreakEven) -> Table:
    table = Table("", "rows", "times faster", "95 %", "auto", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, step in (("decode", True), ("prefill", False)):
        for rows, found in getattr(rule, name).items():
            verdict = "skips" if rule.loses(rows, step) is None else "runs every layer"
            ratio, interval = f"[bold]{found.ratio:.3f}[/]", f"{found.low:.3f} to {found.high:.3f}"
            table.add_row(name, str(rows), ratio, interval, verdict)
    return table


def numbers(name: str, text: str) -> list[int]:
    """ "1,8" as [1, 8]. ValueError for anything but whole numbers from 1."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ValueError(f"{name} is {text!r}; expected whole numbers from 1, parted by commas: 1,8")
    return found


def planned(batches: list[int], prompts: list[int], prefills: list[int]) -> list[tuple[str, int, int]]:
    """All cells: (name, sequences, tokens)."""
    decoding = [("decode", batch, prompt) for batch in batches for prompt in prompts]
    return decoding + [("prefill", 1, length) for length in prefills]


def write_plot(path: Path, cells: list[Cell]) -> None:
    from laval.report.figures import curve_svg, picture

    points = [
        {"ideal": cell.ideal, "ratio": ratio, "kind": kind}
        for cell in cells
        for kind, ratio in ((f"{cell.name}, {cell.batch} x {cell.prompt}", cell.ratio.median), ("ideal", cell.ideal))
    ]
    svg = curve_svg(points, "ideal", "ratio", "kind", "ideal: what the cost model holds possible", "times faster")
    with atomic_write(path, "w") as file:
        file.write(picture(svg))


def show(out: Screen, cells: list[Cell], machine: dict) -> None:
    numbers = machine["dtype"] + (f", {machine['weights']} weights" if machine["weights"] else "")
    out.say(cell_table(cells))
    out.say(
        f"\n[dim]{machine['device']}, {machine['threads']} threads, {numbers}; {cells[0].times.rounds} "
        "rounds by turns.\nTimes faster: dense over skipping, both by the same engine, above 1 is faster; ideal: what "
        "the cost model holds possible.\nStock: the untouched transformers model.[/]"
    )


def cell_table(cells: list[Cell]) -> Table:
    heads = (
        "",
        "batch",
        "tokens",
        "depth",
        "stock",
        "dense",
        "skipping",
        "times faster",
        "95 %",
        "ideal",
        "over stock",
    )
    table = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for cell in cells:
        per = " ms/token" if cell.name == "decode" else " ms"
        table.add_row(
            cell.name,
            str(cell.batch),
            f"{cell.prompt} + {cell.new}" if cell.new else str(cell.prompt),
            f"{cell.mean_depth:.1f}",
            *(f"{1000 * cell.seconds(name):.1f}{per}" for name in ("stock", "dense", "skipping")),
            f"[bold]{cell.ratio.median:.3f}[/]",
            f"{cell.ratio.low:.3f} to {cell.ratio.high:.3f}",
            f"{cell.ideal:.3f}",
            f"{cell.over_stock:.2f}",
        )
    return table
