"""Writes the tables of the README and of the shipped plug-in's card from the JSON files in benchmarks/results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from laval.evaluate.tables import curve_table
from laval.files import atomic_write

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CARD = ROOT / "src" / "laval" / "plugins" / "smollm2-135m-instruct" / "README.md"

ABOUT = """\
Perplexity relative to dense at matched mean depth (of 30 layers), {tokens:,} tokens of each held-out text. In
brackets: 95 % bootstrap intervals over windows of 512 tokens; for random routes, which go through the plug-in's own
adapters, the least and the greatest of three seeds. ShortGPT and greedy removal chose their layers on {calibration:,}
tokens and have no adapters. A part of the plug-in's ratio is its adapters' adaptation to such text.
"""


def main() -> None:
    text = results()
    replace(ROOT / "README.md", r"(<!-- results -->\n).*?(<!-- /results -->)", text)
    replace(CARD, r"(## Results\n\n).*?(## Budget curve)", text)


def results() -> str:
    return f"{quality()}\n\n{speed()}\n\n"


def quality() -> str:
    found = json.loads((RESULTS / "quality.json").read_text())
    records, facts = found["records"], found["facts"]
    about = ABOUT.format(tokens=records[0]["tokens"], calibration=found["calibration_tokens"])
    made = f"`benchmarks/quality.py`, float32, torch {facts['versions']['torch']}, {facts['date'][:10]}."
    return f"{about}\n{curve_table(records)}\n\n{made}"


def speed() -> str:
    found = json.loads((RESULTS / "speed.json").read_text())
    machine = found["machine"]
    lines = [
        "| who | what | depth | stock | dense | skipping | times faster (95 %) | ideal | over stock |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [speed_row(cell) for cell in found["cells"]]
    about = (
        f"`benchmarks/speed.py`, float32, {machine['threads']} threads of {machine['device']}; the three take turns. "
        "Stock: the untouched transformers model. Dense: every layer, by our engine. Times faster: dense over "
        "skipping; ideal: what the cost model holds possible. Random routers skip that many layers a token, whatever "
        "the text."
    )
    return "\n".join(lines) + f"\n\n{about}"


def speed_row(cell: dict) -> str:
    times = " | ".join(f"{1000 * cell['seconds'][name]:.0f} ms" for name in ("stock", "dense", "skipping"))
    low, high = cell["interval"]
    return (
        f"| {cell['who']} | {cell['cell']}, {cell['batch']} x {cell['prompt']} | {cell['mean_depth']:.1f} | {times} "
        f"| {cell['ratio']:.3f} ({low:.3f} to {high:.3f}) | {cell['ideal']:.3f} | {cell['skipping_over_stock']:.2f} |"
    )


def replace(path: Path, pattern: str, text: str) -> None:
    old = path.read_text("utf-8")
    new, count = re.subn(pattern, lambda found: found[1] + text + found[2], old, flags=re.S)
    if not count:
        raise ValueError(f"{path}: no place for the results; expected {pattern}")
    with atomic_write(path, "w") as file:
        file.write(new)


if __name__ == "__main__":
    main()
