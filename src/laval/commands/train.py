"""laval train: from a recipe to a plug-in."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Argument, Option

from laval.commands.screen import Json, screen
from laval.config import load_config

if TYPE_CHECKING:
    from laval.train.recipe import Recipe


def train(
    recipe: Annotated[Path, Argument(metavar="RECIPE", help="A YAML file; see recipes/.", show_default=False)],
    set_: Annotated[
        list[str] | None, Option("--set", help="Change one value: --set data.length=128. Repeatable.")
    ] = None,
    resume: Annotated[bool, Option(help="Go on where an earlier run stopped.")] = True,
    json: Json = False,
) -> None:
    """Train a plug-in by a recipe; a stopped run goes on where it was."""
    with screen(json) as out:
        from laval.train.recipe import Recipe  # torch and the Trainer take seconds to import

        wanted = load_config(Recipe, recipe, set_ or ())
        check(wanted, resume)
        from laval.train import finish, run

        with out.console.status(f"loading {wanted.model}"):
            model = run.model_for(wanted)
        out.say(plan(wanted))
        out.say(f"[dim]everything goes to {wanted.output}; Ctrl-C writes a checkpoint and says how to go on[/]")
        run.train(model, wanted)
        folder = wanted.output / finish.PLUGIN
        out.say(f"\nthe plug-in is in [bold]{folder}[/]; try it:", soft_wrap=True)
        out.say(f'laval generate {folder} "Why is the sky blue?" --show-depth', soft_wrap=True, style="cyan")
        out.document = {"output": str(wanted.output), "plugin": str(folder), "curve": model.config.curve}


def check(recipe: Recipe, resume: bool) -> None:
    """What can be known before anything is loaded. ValueError with the way out."""
    if find_spec("accelerate") is None:
        raise ValueError("training needs the package accelerate; run: pip install 'laval[train]'")
    if not resume and any(recipe.output.glob("stage-*")):
        raise ValueError(
            f"output is {recipe.output}, which holds an earlier run, and --no-resume was given; "
            "delete it, or choose another folder: --set output=FOLDER"
        )


def plan(recipe: Recipe) -> Table:
    """The stages, and how far an earlier run came."""
    table = Table("stage", "objective", "tokens", "depth", "", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for number, stage in enumerate(recipe.stages, 1):
        depth = " to ".join(f"{value:g}" for value in stage.depth) if stage.depth else f"alpha {stage.alpha:g}"
        table.add_row(str(number), stage.objective, f"{stage.tokens:,}", depth, state(recipe, number, stage.objective))
    return table


def state(recipe: Recipe, number: int, objective: str) -> str:
    folder = recipe.output / f"stage-{number}-{objective}"
    if (folder / "done").exists():
        return "done"
    steps = [int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*")]
    return f"goes on at step {max(steps)}" if steps else ""
