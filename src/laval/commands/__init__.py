"""The command line: `laval VERB`, one file per verb."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from laval import __version__
from laval.commands.bench import bench
from laval.commands.calibrate import calibrate
from laval.commands.demo import demo
from laval.commands.eval import evaluate
from laval.commands.generate import generate
from laval.commands.info import info
from laval.commands.mistakes import explain, whole_lines
from laval.commands.trace import trace
from laval.commands.train import train

HELP = (
    "Transformers that spend less: fewer layers for the easy tokens.\n\n"
    "MODEL is [cyan]smollm2[/] (the default model with its plug-in), a plug-in folder, a model folder, or OWNER/NAME "
    "on the Hugging Face hub. With [cyan]--json[/] the last line of standard output is one JSON document."
)
EXAMPLES = "\n\n".join(
    [
        "[bold]Examples[/]",
        "[cyan]laval demo[/]",
        '[cyan]laval generate smollm2 "Why is the sky blue?" --show-depth[/]',
        "[cyan]laval trace smollm2 --text notes.txt --html depth.html[/]",
        "[cyan]laval eval smollm2 --text notes.txt --depth 27 --json[/]",
        "[cyan]laval train recipes/smollm2-flexidepth.yaml --set seed=1[/]",
        "[dim]laval VERB --help says more.[/]",
    ]
)
PANELS = {
    "See": {"demo": demo, "generate": generate, "trace": trace, "info": info},
    "Measure": {"eval": evaluate, "bench": bench},
    "Make": {"train": train, "calibrate": calibrate},
}


class Verbs(TyperGroup):
    """Mistakes of a user end in one line and exit code 2, Ctrl-C in a word and 130; `--debug` shows the traceback."""

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


app = typer.Typer(
    name="laval",
    cls=Verbs,
    epilog=EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"laval {__version__}")
        raise typer.Exit()


@app.callback(help=HELP)
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=say_version, is_eager=True)
    ] = False,
) -> None:
    """What all verbs share; `Verbs` and `say_version` act on it."""


for panel, verbs in PANELS.items():
    for name, verb in verbs.items():
        app.command(name, rich_help_panel=panel)(verb)


def main() -> None:
    """The `laval` command."""
    app()
