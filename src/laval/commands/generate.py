"""laval generate: text that streams, with the depth of every token."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from laval.commands.screen import Depth, Json, Model, Screen, Weights, depth_line, open_model, prompt_ids, screen

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    import torch

    from laval.report.tracing import Generation
    from laval.speculate import LosslessGeneration

COLDEST = 1e-3  # below it scores divided by the temperature leave the range of half precision


def generate(
    model: Model,
    prompt: Annotated[
        str, Argument(metavar="PROMPT", help="What the model answers, or goes on from.", show_default=False)
    ],
    max_new_tokens: Annotated[int, Option(min=1, help="Stop after this many tokens.")] = 128,
    depth: Depth = None,
    weights: Weights = None,
    show_depth: Annotated[bool, Option("--show-depth", help="Colour each token by the layers it took.")] = False,
    chat: Annotated[
        bool | None,
        Option("--chat/--raw", help="Use the chat template or not. Default: where the model has one."),
    ] = None,
    dense: Annotated[bool, Option("--dense", help="The untouched base model, for comparison.")] = False,
    temperature: Annotated[float, Option(min=0, help="0: always the most likely token.")] = 0.0,
    top_p: Annotated[float, Option(min=0, max=1, help="Sample from the likeliest tokens of this mass.")] = 1.0,
    seed: Annotated[int, Option(help="Of sampling.")] = 0,
    exactly: Annotated[
        bool, Option("--lossless", help="The dense model's own text, in fewer passes: drafts propose, it verifies.")
    ] = False,
    draft: Annotated[
        str, Option(metavar="NAME", help="With --lossless, who proposes: auto, head, skip, exit, lookup or none.")
    ] = "auto",
    json: Json = False,
) -> None:
    """Answer a prompt, and show the layers each token took."""
    with screen(json) as out:
        import torch

        from laval.commands.stream import streamed
        from laval.models import dense as untouched
        from laval.skip.fixed import check_seed

        check_seed(seed)
        check_lossless(exactly, draft, dense, show_depth)
        adaptive = open_model(model, depth, out, weights)
        ids = prompt_ids(adaptive, prompt, chat, max_new_tokens)
        torch.manual_seed(seed)
        if exactly:
            made = verified(adaptive, ids, out, draft, max_new_tokens=max_new_tokens, **sampling(temperature, top_p))
            out.document = account_of(model, adaptive, made, ids.shape[1])
            return
        with untouched(adaptive) if dense else nullcontext():
            made = streamed(
                adaptive, ids, out.console, show_depth, max_new_tokens=max_new_tokens, **sampling(temperature, top_p)
            )
        new = made.trace.run[:, 0, ids.shape[1] :]  # [L, new]
        if show_depth:
            show(out, adaptive, new)
        out.document = document(model, made, ids.shape[1], new)


def check_lossless(exactly: bool, draft: str, dense: bool, show_depth: bool) -> None:
    """ValueError for options that contradict each other."""
    from laval.speculate.refuse import check_draft

    if not exactly:
        if draft != "auto":
            raise ValueError(f"draft is {draft!r} without --lossless; expected --lossless as well, or no --draft")
        return
    check_draft(draft)
    for name, given in (("--dense", dense), ("--show-depth", show_depth)):
        if given:
            raise ValueError(
                f"{name} and --lossless were both given; every layer runs for lossless text: leave one out"
            )


def verified(model, ids: torch.Tensor, out: Screen, draft: str, **options) -> LosslessGeneration:
    """Lossless text as it comes, and then what it took."""
    from laval.commands.stream import PlainStream
    from laval.speculate import lossless

    made = lossless(model, ids, draft, streamer=PlainStream(model, out.console), **options)
    out.say(f"\n{made.account.line()}")
    return made


def account_of(name: str, model, made: LosslessGeneration, prompt: int) -> dict:
    new = made.ids[0, prompt:]
    text = model.tokenizer.decode(new, skip_special_tokens=True)
    return {"model": name, "text": text, "prompt_tokens": prompt, "lossless": True} | made.account.to_dict()


def sampling(temperature: float, top_p: float) -> dict:
    """Options of transformers' generate."""
    if temperature == 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if not COLDEST <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature:g}; expected 0 (the likeliest token), or {COLDEST:g} and more")
    if top_p == 0:
        raise ValueError("top-p is 0; expected more than 0, up to 1 (1 keeps every token)")
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}


def show(out: Screen, model, run: torch.Tensor) -> None:
    """Legend, mean depth and a bar per layer for new tokens run [L, N]."""
    from laval.commands.stream import floor_of
    from laval.report import depth_legend, layer_bars

    rates = run.double().mean(1).tolist()
    out.say()
    out.say(depth_legend(len(rates), floor_of(model)))
    out.say(f"{run.shape[1]} new tokens, mean depth {depth_line(sum(rates), len(rates))}\n")
    out.say(layer_bars(rates, only=model.policy.layers))


def document(name: str, made: Generation, prompt: int, run: torch.Tensor) -> dict:
    rates = run.double().mean(1).tolist()
    return {
        "model": name,
        "text": made.texts[0],
        "prompt_tokens": prompt,
        "new_tokens": run.shape[1],
        "layers": run.shape[0],
        "mean_depth": sum(rates),
        "depth": run.sum(0).tolist(),
        "pieces": made.trace.tokens[0][prompt:],
        "layer_rates": rates,
    }
