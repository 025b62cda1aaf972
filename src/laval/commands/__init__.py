"""The command line: `laval VERB`, one file per verb, listed in verbs.py."""

from __future__ import annotations

from typing import Annotated

import typer

from laval import __version__
from laval.commands.verbs import Verbs, add_verbs

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


add_verbs(app)


def main() -> None:
    """The `laval` command."""
    app()
