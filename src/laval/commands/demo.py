"""laval demo: a pretrained model answers with fewer layers per token than it was built with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.rule import Rule
from typer import Option

from laval.commands.screen import (
    Depth,
    Json,
    Screen,
    check_page,
    context_of,
    depth_line,
    held_out,
    open_model,
    prompt_ids,
    screen,
)

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.evaluate import TextScore
    from laval.measure.speed import Cell
    from laval.report import Trace
    from laval.report.tracing import Generation

PROMPTS = (
    "Why is the sky blue? Answer in one sentence.",
    "Write a short thank-you note to a neighbour who watered my plants.",
    "A ticket costs 12 coins. How much do 3 tickets cost?",
)
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def demo(
    depth: Depth = None,
    out: Annotated[Path, Option(help="The page to write.")] = Path("demo.html"),
    model: Annotated[str, Option(help="Another model or plug-in.")] = "smollm2",
    max_new_tokens: Annotated[int, Option(min=1, help="Of each answer.")] = 40,
    json: Json = False,
) -> None:
    """See it: a pretrained model answers, dense and skipping, side by side."""
    start = time.perf_counter()
    with screen(json) as on:
        check_page(out)
        adaptive = open_model(model, depth, on)
        introduce(on, adaptive)
        answers = [answer(on, adaptive, prompt, max_new_tokens) for prompt in PROMPTS]
        together(answers).to_html(out)
        on.say(Rule("what it costs and what it gains", style="dim"))
        skipping, untouched, text = quality(on, adaptive)
        cell = speed(on, adaptive, text)
        show(on, answers, skipping, untouched, cell, adaptive.policy.layers)
        on.say(f"\npage: [bold]{out}[/]  [dim]({time.perf_counter() - start:.0f} s in all)[/]", soft_wrap=True)
        on.document = document(model, out, answers, skipping, untouched, cell, time.perf_counter() - start)


def introduce(on: Screen, model) -> None:
    from laval.commands.stream import floor_of
    from laval.report import depth_legend

    layers, routed = len(model.backbone.blocks), len(model.policy.layers)
    on.say(
        f"[bold]{model.config.base_name or 'the model'}[/]: {layers} layers, of which each token may skip some of "
        f"{routed}. The colour of a token says how many layers ran for it."
    )
    on.say(depth_legend(layers, floor_of(model)))


def answer(on: Screen, model, prompt: str, new: int) -> tuple[Generation, Generation]:
    """The skipping and the dense answer, as they come."""
    from laval.commands.stream import streamed
    from laval.models import dense

    ids = prompt_ids(model, prompt, None, new)
    on.say(f"\n[bold]{prompt}[/]")
    on.say("[dim]dense     [/]", end="")
    with dense(model):
        untouched = streamed(model, ids, on.console, False, max_new_tokens=new, **GREEDY)
    on.say("[dim]skipping  [/]", end="")
    skipping = streamed(model, ids, on.console, True, max_new_tokens=new, **GREEDY)
    on.say(f"[dim]          mean depth {depth_line(new_depth(skipping), len(model.backbone.blocks))}[/]")
    return skipping, untouched


def new_depth(made: Generation) -> float:
    """Mean depth of the generated tokens of the one row."""
    start = made.trace.new_from[0]
    return float(made.trace.depth[0, start:].double().mean())


def together(answers: list[tuple[Generation, Generation]]) -> Trace:
    """The skipping answers as one trace, shorter ones padded at the end."""
    import torch

    from laval.report import Trace

    traces = [skipping.trace for skipping, _ in answers]
    width = max(trace.run.shape[-1] for trace in traces)

    def joined(name: str, fill) -> torch.Tensor:
        parts = [getattr(trace, name) for trace in traces]
        return torch.cat(
            [torch.nn.functional.pad(part, (0, width - part.shape[-1]), value=fill) for part in parts], dim=-2
        )

    return Trace(
        tokens=[trace.tokens[0] + [""] * (width - len(trace.tokens[0])) for trace in traces],
        run=joined("run", False),
        valid=joined("valid", False),
        gate=None if any(trace.gate is None for trace in traces) else joined("gate", float("nan")),
        tau=traces[0].tau,
        new_from=[trace.new_from[0] for trace in traces],
        facts=traces[0].facts,
    )


def quality(on: Screen, model):
    """Perplexity of both on the small held-out text, and its token ids."""
    from laval.evaluate import perplexity
    from laval.models import dense

    text = held_out(model)
    length = min(512, context_of(model))
    with on.console.status(f"reading a held-out text of {len(text):,} tokens, twice"):
        skipping = perplexity(model, text, length, batch=4, progress=False)
        with dense(model):
            untouched = perplexity(model, text, length, batch=4, progress=False)
    return skipping, untouched, text.ids


def speed(on: Screen, model, ids) -> Cell:
    from laval.measure.speed import decode_cell

    prompt = min(64, context_of(model) // 4)
    with on.console.status("decoding, dense and skipping by turns"):
        return decode_cell(model, ids, prompt, steps=4, rounds=12, seconds_limit=12)


def show(on: Screen, answers, skipping: TextScore, untouched: TextScore, cell: Cell, routed) -> None:
    from laval.report import layer_bars

    layers, ratio = len(skipping.layer_rates), skipping.perplexity / untouched.perplexity
    depth = sum(new_depth(made) for made, _ in answers) / len(answers)
    seconds = {name: f"{cell.seconds(name):.4f}" for name in ("dense", "skipping")}
    on.rows(
        {
            "answers": f"mean depth {depth_line(depth, layers)}",
            "held-out text": f"mean depth {depth_line(skipping.mean_depth, layers)}, {skipping.tokens:,} tokens",
            "perplexity": f"{untouched.perplexity:.2f} dense, [bold]{skipping.perplexity:.2f}[/] skipping "
            f"({ratio:.3f}x)",
            "seconds per token": f"{seconds['dense']} dense, [bold]{seconds['skipping']}[/] skipping: "
            f"[bold]{cell.ratio.median:.2f}x[/] as fast",
            "": f"[dim]by turns, 95 % {cell.ratio.low:.2f} to {cell.ratio.high:.2f}; the cost model holds "
            f"{cell.ideal:.2f}x possible at {cell.mean_depth:.1f} layers[/]",
        }
    )
    on.say("\n[dim]The held-out text is ours and small: a first look. laval eval and laval bench measure properly.[/]")
    on.say("\n[dim]share of its tokens that ran each layer that may be skipped[/]")
    on.say(layer_bars(skipping.layer_rates, width=24, only=routed))


def document(model: str, page: Path, answers, skipping: TextScore, untouched: TextScore, cell: Cell, seconds) -> dict:
    return {
        "model": model,
        "html": str(page),
        "answers": [
            {
                "prompt": prompt,
                "dense": untouched_answer.texts[0],
                "skipping": skipping_answer.texts[0],
                "mean_depth": new_depth(skipping_answer),
            }
            for prompt, (skipping_answer, untouched_answer) in zip(PROMPTS, answers, strict=True)
        ],
        "layers": len(skipping.layer_rates),
        "mean_depth": skipping.mean_depth,
        "perplexity": skipping.perplexity,
        "dense_perplexity": untouched.perplexity,
        "tokens": skipping.tokens,
        "speed": cell.to_dict(),
        "seconds": seconds,
    }
