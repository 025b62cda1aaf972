"""The verbs: all named at once, each imported when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import typer
from typer.core import TyperGroup
from typer.main import get_command

from laval.commands.mistakes import explain, whole_lines


@dataclass(frozen=True)
class Verb:
    """panel: its heading in the list of verbs. help: the first line of its docstring. function: None: its name."""

    panel: str
    help: str
    function: str | None = None


VERBS = {
    "demo": Verb("See", "See it: a pretrained model answers, dense and skipping, side by side."),
    "generate": Verb("See", "Answer a prompt, and show the layers each token took."),
    "trace": Verb("See", "Write a text as a depth map: one self-contained HTML page."),
    "info": Verb("See", "What a model is: method, layers, sizes, budget curve, ideal speed-up."),
    "eval": Verb("Measure", "Perplexity and bits per byte on a text, dense and skipping.", "evaluate"),
    "bench": Verb("Measure", "Seconds of stock, dense and skipping in paired runs, beside the ideal."),
    "train": Verb("Make", "Train a plug-in by a recipe; a stopped run goes on where it was."),
    "draft": Verb("Make", "Train a draft that guesses ahead, for generate --lossless; saved beside the plug-in."),
    "calibrate": Verb("Make", "Find the thresholds of each depth on text; saved with the plug-in."),
}


class Verbs(TyperGroup):
    """Mistakes of a user end in one line and exit code 2, Ctrl-C in a word and 130; `--debug` shows the traceback."""

    def resolve_command(self, ctx, args):
        name, _, rest = super().resolve_command(ctx, args)
        return name, command(name), rest

    def invoke(self, ctx):
        try:
            with whole_lines():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            explain("stopped", style="yellow")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader has seen enough
            raise
        except (ValueError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            explain(error)
            raise typer.Exit(2) from None


def command(name: str):
    """The verb itself, with its options."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    alone.command(name)(getattr(import_module(f"laval.commands.{name}"), VERBS[name].function or name))
    return get_command(alone)


def add_verbs(app: typer.Typer) -> None:
    """Names, headings and one line each: what a list of verbs needs."""
    for name, verb in VERBS.items():
        app.command(name, rich_help_panel=verb.panel, help=verb.help)(stand_in)


def stand_in() -> None:
    """Listed in place of a verb, and never called: see `Verbs.resolve_command`."""
