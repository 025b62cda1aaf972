"""laval eval: how well the skipping model predicts a text, beside the dense one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from laval.commands.screen import (
    Depth,
    Json,
    Length,
    Model,
    Screen,
    Weights,
    depth_line,
    open_model,
    screen,
    tokenizer_of,
    window,
)

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.evaluate import TextScore


def evaluate(
    model: Model,
    text: Annotated[Path, Option(help="A text file, or chat as .jsonl.", show_default=False)],
    depth: Depth = None,
    weights: Weights = None,
    length: Length = None,
    limit: Annotated[int | None, Option(min=2, help="Read at most this many tokens.", show_default=False)] = None,
    batch: Annotated[int, Option(min=1, help="Windows per forward.")] = 4,
    json: Json = False,
) -> None:
    """Perplexity and bits per byte on a text, dense and skipping."""
    with screen(json) as out:
        from laval.evaluate import perplexity, read_text
        from laval.models import dense

        adaptive = open_model(model, depth, out, weights)
        size = window(length, adaptive)
        read = read_text(text, tokenizer_of(adaptive), limit)
        skipping = perplexity(adaptive, read, size, batch=batch)
        with dense(adaptive):
            untouched = perplexity(adaptive, read, size, batch=batch)
        show(out, skipping, untouched, adaptive.policy.layers)
        out.document = document(model, skipping, untouched)


def show(out: Screen, skipping: TextScore, untouched: TextScore, routed: tuple[int, ...]) -> None:
    from laval.report import layer_bars

    ratio = skipping.perplexity / untouched.perplexity
    out.rows(
        {
            "perplexity": f"[bold]{skipping.perplexity:.3f}[/] skipping, {untouched.perplexity:.3f} dense",
            "ratio": f"{ratio:.3f}",
            "bits per byte": f"{skipping.bits_per_byte:.4f} skipping, {untouched.bits_per_byte:.4f} dense",
            "mean depth": depth_line(skipping.mean_depth, len(skipping.layer_rates)),
            "tokens": f"{skipping.tokens:,}",
        }
    )
    out.say()
    out.say(layer_bars(skipping.layer_rates, only=routed))


def document(name: str, skipping: TextScore, untouched: TextScore) -> dict:
    return {
        "model": name,
        "perplexity": skipping.perplexity,
        "dense_perplexity": untouched.perplexity,
        "ratio": skipping.perplexity / untouched.perplexity,
        "bits_per_byte": skipping.bits_per_byte,
        "dense_bits_per_byte": untouched.bits_per_byte,
        "mean_depth": skipping.mean_depth,
        "layers": len(skipping.layer_rates),
        "tokens": skipping.tokens,
        "bytes": skipping.bytes,
        "layer_rates": list(skipping.layer_rates),
    }
