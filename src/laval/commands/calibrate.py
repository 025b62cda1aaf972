"""laval calibrate: one plug-in, many budgets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Option

from laval.commands.screen import Json, Length, Model, Screen, open_model, screen, tokenizer_of, window

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
    json: Json = False,
) -> None:
    """Find the thresholds of each depth on text; saved with the plug-in."""
    with screen(json) as on:
        from laval.evaluate import calibrate as curve_of
        from laval.evaluate import read_text, text_batches
        from laval.models import set_depth

        wanted, folder = numbers(depths), target(model, out)
        adaptive = open_model(model, None, on)
        size = window(length, adaptive)
        read = [read_text(path, tokenizer_of(adaptive), limit) for path in text]
        batches = [batch for each in read for batch in text_batches(each, size, batch=4)]
        adaptive.config.curve = curve_of(adaptive, batches, wanted)
        if depth is not None:
            set_depth(adaptive, depth)
        save(adaptive, folder, Path(model))
        show(on, adaptive.config.curve)
        on.say(f"saved in {folder}", soft_wrap=True)
        on.document = {"folder": str(folder), "curve": adaptive.config.curve, "tokens": sum(map(len, read))}


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


def show(on: Screen, curve: list[dict]) -> None:
    on.say("[bold]Budget curve[/] [dim]on the calibration text[/]")
    on.say(curve_table(curve))
