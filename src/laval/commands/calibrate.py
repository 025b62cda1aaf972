"""laval calibrate: one plug-in, many budgets."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Option

from laval.commands.screen import (
    Json,
    Length,
    Model,
    Screen,
    check_page,
    open_model,
    screen,
    tokenizer_of,
    window,
)
from laval.files import atomic_write

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.models import AdaptiveForCausalLM


def calibrate(
    model: Model,
    text: Annotated[list[Path], Option(help="Calibration text (repeatable): mixed, as it will be used.")],
    depths: Annotated[str, Option(help="Mean layers per token, with commas: 26,27,28.", show_default=False)],
    out: Annotated[Path | None, Option(help="Plug-in folder to write. Default: MODEL itself.")] = None,
    depth: Annotated[float | None, Option(help="The depth it is loaded at. Default: as it is now.")] = None,
    length: Length = None,
    limit: Annotated[int, Option(min=2, help="Tokens to read of each text.")] = 8192,
    plot: Annotated[Path | None, Option(help="Draw the curve, an SVG picture: perplexity and ideal speed.")] = None,
    json: Json = False,
) -> None:
    """Find the thresholds of each depth on text; saved with the plug-in."""
    with screen(json) as on:
        from laval.evaluate import calibrate as curve_of
        from laval.evaluate import read_text, text_batches
        from laval.models import set_depth

        wanted, folder = numbers(depths), target(model, out)
        check_plot(plot)
        adaptive = open_model(model, None, on)
        size = window(length, adaptive)
        read = [read_text(path, tokenizer_of(adaptive), limit) for path in text]
        batches = [batch for each in read for batch in text_batches(each, size, batch=4)]
        adaptive.config.curve = curve_of(adaptive, batches, wanted)
        if depth is not None:
            set_depth(adaptive, depth)
        save(adaptive, folder, Path(model))
        points, untouched = drawn(adaptive), dense_perplexity(adaptive, batches)
        show(on, points, untouched)
        on.say(f"saved in {folder}", soft_wrap=True)
        if plot is not None:
            write_plot(plot, points, untouched)
            on.say(f"picture: {plot}", soft_wrap=True)
        on.document = {"folder": str(folder), "curve": adaptive.config.curve, "tokens": sum(map(len, read))}
        on.document |= {"points": points, "dense_perplexity": untouched}


def check_plot(plot: Path | None) -> None:
    """ValueError unless a picture can be made at `plot`, before minutes are spent on what it shows."""
    if plot is None:
        return
    check_page(plot)
    if find_spec("matplotlib") is None:
        raise ValueError("--plot needs the package matplotlib; run: pip install 'laval[report]'")


def numbers(depths: str) -> list[float]:
    try:
        return [float(part) for part in depths.split(",")]
    except ValueError:
        raise ValueError(
            f"depths is {depths!r}; expected numbers with commas between them, such as 26,27,28"
        ) from None


def target(model: str, out: Path | None) -> Path:
    """The folder to write, known before the work starts."""
    from laval.models.record import RECORD

    if out is None and not (Path(model) / RECORD).is_file():
        raise ValueError(
            f"--out is missing, and {model} is not a plug-in folder; say where the plug-in goes: --out FOLDER"
        )
    return Path(model) if out is None else out


def save(model: AdaptiveForCausalLM, folder: Path, source: Path) -> None:
    """In the number type and with the card that the plug-in had."""
    import torch

    from laval.models.plugin import CARD, save_plugin
    from laval.models.record import RECORD, read_record

    record, card = source / RECORD, source / CARD
    dtype = read_record(record)[0].dtype if record.is_file() else None
    save_plugin(
        model,
        folder,
        dtype=getattr(torch, dtype) if dtype else None,
        card=card.read_text(encoding="utf-8") if card.is_file() and record.is_file() else None,
    )


def curve_table(curve: list[dict]) -> Table:
    """Depth and perplexity of each point, and the thresholds as they are."""
    table = Table("depth", "perplexity", "threshold", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for point in curve:
        taus = point["taus"]
        spread = f"{min(taus):.3g}" if min(taus) == max(taus) else f"{min(taus):.3g} to {max(taus):.3g}"
        nats = point.get("nats")
        table.add_row(f"{point['depth']:.2f}", "" if nats is None else f"{math.exp(nats):.2f}", spread)
    return table


def drawn(model: AdaptiveForCausalLM) -> list[dict]:
    """The points of the curve as they are shown: depth, perplexity, and how many times faster than dense on paper."""
    from laval.measure.model import model_cost

    points = []
    for point in model.config.curve:
        ideal = model_cost(model, prompt=512, new=128, depth=point["depth"])
        speeds = {phase: ideal.phase_speedup(phase) for phase in ("decode", "prefill")}
        points.append({"depth": point["depth"], "perplexity": math.exp(point["nats"])} | speeds)
    return points


def dense_perplexity(model: AdaptiveForCausalLM, batches) -> float:
    """Of the untouched base on the same text."""
    from laval.evaluate.budget import mean_nats
    from laval.models import dense

    with dense(model):
        return math.exp(mean_nats(model, batches))


def write_plot(path: Path, points: list[dict], untouched: float) -> None:
    from laval.report.figures import budget_svg, picture

    with atomic_write(path, "w") as file:
        file.write(picture(budget_svg(points, untouched)))


def show(on: Screen, points: list[dict], untouched: float) -> None:
    on.say("[bold]Budget curve[/] [dim]on the calibration text; ideal: times faster than dense, on paper[/]")
    on.say(points_table(points, untouched))


def points_table(points: list[dict], untouched: float) -> Table:
    """Every depth beside dense; the bar is how much perplexity lies above the lowest of all."""
    from laval.report.terminal import bar

    heads = ("depth", "perplexity", "of dense", "", "ideal decode", "prefill")
    table = Table(*heads, box=None, padding=(0, 3, 0, 0), header_style="dim")
    found = [point["perplexity"] for point in points] + [untouched]
    low, span = min(found), max(max(found) - min(found), 1e-9)
    for point in points:
        size, speeds = (point["perplexity"] - low) / span, (f"{point[phase]:.2f}" for phase in ("decode", "prefill"))
        shown = f"{point['perplexity']:.2f}", f"{point['perplexity'] / untouched:.3f}", f"[cyan]{bar(size, 20)}[/]"
        table.add_row(f"{point['depth']:.2f}", *shown, *speeds)
    table.add_row(
        "dense", f"{untouched:.2f}", "1.000", f"[cyan]{bar((untouched - low) / span, 20)}[/]", "1.00", "1.00"
    )
    return table
