"""The model card of a trained plug-in: what it was made from, how, and with which versions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch
import transformers
import yaml

import laval
from laval.config import to_mapping
from laval.models import AdaptiveForCausalLM
from laval.train.metrics import seconds_spent
from laval.train.recipe import Data, Recipe

RESULTS = "Not measured yet: `laval eval FOLDER --text FILE` prints them."


def card(model: AdaptiveForCausalLM, recipe: Recipe, ranks: int = 1) -> str:
    """Markdown with front matter, for the README.md of the plug-in."""
    base = model.config.base_name or recipe.model
    parts = [
        header(base),
        f"# A laval plug-in for {base}\n\nExtra weights that let the model skip layers, token by token.",
        '```python\nimport laval\n\nmodel = laval.load("FOLDER")\n```',
        "\n".join(f"- {key}: {value}" for key, value in recipe.card.items()),
        section("Results", RESULTS),
        section("Budget curve", curve_table(model.config.curve)),
        section("Training", training(recipe, ranks)),
        section("Data", data_tables(recipe)),
        section("Recipe", f"```yaml\n{yaml.safe_dump(to_mapping(recipe), sort_keys=False)}```"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(base: str) -> str:
    return f"---\nlibrary_name: laval\ntags: [laval, layer-skipping]\nbase_model: {json.dumps(base)}\n---"


def section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def curve_table(curve: list[dict]) -> str:
    """Measured on the calibration text."""
    rows = [f"| {point['depth']:.2f} | {point['nats']:.4f} |" for point in curve]
    return "\n".join(["| mean layers per token | nats per token |", "|---|---|", *rows]) if rows else ""


def training(recipe: Recipe, ranks: int) -> str:
    spent = seconds_spent(recipe.output / "metrics.jsonl")
    rows = ["| stage | tokens seen | minutes |", "|---|---|---|"]
    for number, stage in enumerate(recipe.stages, 1):
        name, length = f"{number}-{stage.objective}", (stage.data or recipe.data).length
        tokens = stage.tokens_seen(length, ranks)
        rows.append(f"| {name} | {tokens:,} | {spent.get(name, 0.0) / 60:.1f} |")
    facts = {
        "seed": recipe.seed,
        "processes": ranks,
        "wall time": f"{sum(spent.values()) / 60:.1f} minutes",
        "commit": commit(),
        "versions": f"laval {laval.__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
    }
    return "\n".join(rows) + "\n\n" + "\n".join(f"- {key}: {value}" for key, value in facts.items())


def data_tables(recipe: Recipe) -> str:
    tables = [data_table(recipe.data)]
    for number, stage in enumerate(recipe.stages, 1):
        if stage.data is not None:
            tables.append(f"Instead, in stage {number}:\n\n{data_table(stage.data)}")
    return "\n\n".join(tables)


def data_table(data: Data) -> str:
    total = sum(source.weight for source in data.sources)
    rows = [f"| {source.path} | {source.weight / total:.1%} | {source.hold_out:.0%} |" for source in data.sources]
    return "\n".join(["| source | share of the tokens seen | records held out |", "|---|---|---|", *rows])


def commit() -> str:
    """The git commit of laval's own source, and whether it was changed since; "unknown" where it is no checkout."""
    folder = Path(laval.__file__).parent
    tracked = git(folder, "ls-files", "--error-unmatch", "__init__.py")
    if tracked is None:
        return "unknown"
    changed = git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{git(folder, 'rev-parse', 'HEAD')}{' with changes' if changed else ''}"


def git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
