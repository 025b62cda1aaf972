"""laval trace: a text as a depth map, on a page of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from laval.commands.screen import (
    Depth,
    Json,
    Model,
    check_page,
    check_room,
    context_of,
    depth_line,
    open_model,
    prompt_ids,
    screen,
    tokenizer_of,
    window,
)

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.report import Trace


def trace(
    model: Model,
    prompt: Annotated[
        str | None, Argument(metavar="[PROMPT]", help="The text itself, instead of --text.", show_default=False)
    ] = None,
    text: Annotated[Path | None, Option(help="A text file, or chat as .jsonl.", show_default=False)] = None,
    html: Annotated[Path, Option(help="The page to write.")] = Path("trace.html"),
    generate: Annotated[int, Option(min=0, help="Let the model go on for this many tokens.")] = 0,
    depth: Depth = None,
    limit: Annotated[int | None, Option(min=2, help="Tokens of the file to read. Default: 512, if they fit.")] = None,
    chat: Annotated[bool, Option("--chat/--raw", help="Put PROMPT into the chat template.")] = False,
    json: Json = False,
) -> None:
    """Write a text as a depth map: one self-contained HTML page."""
    with screen(json) as out:
        from laval.evaluate import read_text

        check_page(html)
        if (prompt is None) == (text is None):
            raise ValueError("PROMPT and --text: expected exactly one of them, a text in quotes or the name of a file")
        adaptive = open_model(model, depth, out)
        ids = (
            prompt_ids(adaptive, prompt, chat, generate)
            if text is None
            else read_text(text, tokenizer_of(adaptive), limit or window(None, adaptive)).ids[None]  # [1, T]
        )
        check_room(ids.shape[1], generate, context_of(adaptive))
        with out.console.status("reading"):
            made = made_for(adaptive, ids, generate)
        made.to_html(html)
        out.say(f"{made.count:,} tokens, mean depth {depth_line(made.mean_depth, made.layers)}")
        out.say(f"page: {html}", soft_wrap=True)
        out.document = document(made, html)


def made_for(model, ids, new: int) -> Trace:
    from laval.report.tracing import trace as traced
    from laval.report.tracing import trace_generation

    if not new:
        return traced(model, ids)
    return trace_generation(model, ids, max_new_tokens=new, do_sample=False).trace


def document(made: Trace, html: Path) -> dict:
    return {
        "html": str(html),
        "layers": made.layers,
        "tokens": made.count,
        "mean_depth": made.mean_depth,
        "skipped_share": made.skipped_share,
        "layer_rates": made.layer_rates.tolist(),
        "margin": made.margin,
    }
