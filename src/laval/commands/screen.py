"""What verbs have in common: where they write, which model and text they work on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # torch takes seconds, and the help of a verb needs only the options below
    import torch

    from laval.evaluate.text import Text
    from laval.models import AdaptiveForCausalLM

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="smollm2, a plug-in or model folder, or OWNER/NAME.", show_default=False)
]
Depth = Annotated[
    float | None,
    typer.Option(help="Mean layers per token, on the plug-in's budget curve. Default: as the plug-in was saved."),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="int8", help="int8: 8 bits a weight, for speed and memory. Default: as they are."),
]
Length = Annotated[int | None, typer.Option(min=2, help="Tokens read at once. Default: 512, or all of the context.")]
Json = Annotated[bool, typer.Option("--json", help="Last line of standard output: one JSON document.")]
WINDOW = 512


class Screen:
    """People read `console`; programs read `document`, printed as the last line with --json."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False)
        self.document: dict[str, Any] = {}

    def say(self, *lines, **options) -> None:
        self.console.print(*lines, **options)

    def rows(self, rows: dict[str, Any], title: str | None = None) -> None:
        """Names and values, one pair a line."""
        table = Table.grid(padding=(0, 3))
        for name, value in rows.items():
            table.add_row(f"[dim]{name}[/]", str(value))
        if title:
            self.say(f"[bold]{title}[/]")
        self.say(table)


@contextmanager
def screen(as_json: bool) -> Iterator[Screen]:
    """Where a verb writes; with --json all that others print goes to standard error too."""
    out = Screen(as_json)
    if not as_json:
        yield out
        return
    with redirect_stdout(sys.stderr):
        yield out
    print(json.dumps(out.document))


def open_model(name: str, depth: float | None, out: Screen, weights: str | None = None) -> AdaptiveForCausalLM:
    """The model in eval mode with `weights`, set to `depth`. ValueError as `load` and `set_depth`."""
    from laval.models import set_depth
    from laval.models.load import load

    with out.console.status(f"loading {name}"):
        model = load(name, weights=weights)
    if depth is not None:
        set_depth(model, depth)
    return model


def tokenizer_of(model: AdaptiveForCausalLM):
    if model.tokenizer is None:
        raise ValueError("tokenizer is missing in the model's folder; expected tokenizer.json beside its weights")
    return model.tokenizer


def context_of(model: AdaptiveForCausalLM) -> int:
    """Tokens that the base model was built to read."""
    return model.config.text_config.max_position_embeddings


def prompt_ids(model: AdaptiveForCausalLM, prompt: str, chat: bool | None, new: int) -> torch.Tensor:
    """The prompt as ids [1, T], in the chat template where there is one (chat=None) or must be (True).

    ValueError for an empty prompt, and for one that leaves no room for `new` tokens.
    """
    tokenizer = tokenizer_of(model)
    if not encodable(prompt):
        raise ValueError("prompt holds bytes that are not UTF-8; expected text in the encoding of the terminal, UTF-8")
    if not prompt.strip():
        raise ValueError('prompt is empty; expected some text to go on from, such as "Why is the sky blue?"')
    templated = getattr(tokenizer, "chat_template", None)
    if chat and not templated:
        raise ValueError("the model has no chat template; leave --chat out, or use an instruction-tuned model")
    if templated and chat is not False:
        turns = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt", verbose=False).input_ids
    else:
        ids = tokenizer(prompt, return_tensors="pt", verbose=False).input_ids
    check_room(ids.shape[1], new, context_of(model))
    return ids


def encodable(text: str) -> bool:
    """False for text with half surrogates: bytes of the command line that were no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_room(prompt: int, new: int, context: int) -> None:
    """As `generate` does, but before anything else. ValueError."""
    from laval.models import generation

    generation.check_room(prompt, new, context)


def window(length: int | None, model: AdaptiveForCausalLM) -> int:
    """Tokens to read at once: `length`, or 512 where the context allows. ValueError beyond the context length."""
    context = context_of(model)
    if length is not None and length > context:
        raise ValueError(f"length is {length}; expected at most {context}, the model's context length")
    return min(WINDOW, context) if length is None else length


def check_page(path: Path) -> Path:
    """ValueError unless a page can be written at `path`, before minutes are spent on what it shows."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; expected the name of a file to write, such as {path / 'depth.html'}")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; create it first, or choose another place")
    return path


def held_out(model: AdaptiveForCausalLM, limit: int | None = None) -> Text:
    """The small text that comes with the package, written for it and part of no training set."""
    from laval.evaluate.text import tokenize

    text = (files("laval.commands") / "data" / "held_out.txt").read_text(encoding="utf-8")
    return tokenize(text, tokenizer_of(model), limit)


def depth_line(depth: float, layers: int) -> str:
    return f"[bold]{depth:.1f}[/] of {layers} layers ({100 * (1 - depth / layers):.1f} % skipped)"
