"""Thousands of generations of every kind, each compared with its reference, and memory that must stay flat.

    python -m benchmarks.soak [--count 2000] [--real 20] [--start 0] [--minutes 25]
    python -m benchmarks.soak --only SEED

Random prompts, batches, lengths, runtimes, number types, families, ways of generating, depths and continued caches
(see soak_cases.py). A number is a seed: --only runs that one again and lets its error through. Resident memory is
noted every 50 generations; after a warm-up of 1000 a line is fitted, and a slope that is above 4 KiB per generation by
more than two standard errors fails. Writes benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from benchmarks.soak_cases import Plan, plan_of, run
from tqdm import tqdm
from transformers.cache_utils import Cache

from laval.files import atomic_write
from laval.measure import machine_facts

RESULTS = Path(__file__).parent / "results" / "soak.json"
EVERY, WARM = 50, 1000  # new kinds of models turn up for hundreds of generations
STEEP = 4096  # bytes per generation
REAL = 1_000_000  # seeds from here on are for the shipped model


def main() -> None:
    asked = arguments()
    if asked.only is not None:
        plan = plan_of(asked.only, real=asked.only >= REAL)
        print(plan)
        run(plan)
        print("as the reference")
        return
    seeds = [*(REAL + i for i in range(asked.real)), *range(asked.start, asked.start + asked.count)]
    record = soak([plan_of(seed, real=seed >= REAL) for seed in seeds], minutes=asked.minutes, progress=True)
    record["facts"] = machine_facts()
    with atomic_write(RESULTS, "w") as file:
        json.dump(record, file, indent=1)
    print(said(record))
    raise SystemExit(bool(record["failures"] or record["memory"]["leaks"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--real", type=int, default=0, help="as many more on the shipped model")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after so many, and say how far it came"
    )
    parser.add_argument("--only", type=int, help="one seed")
    return parser.parse_args()


def soak(
    plans: list[Plan], every: int = EVERY, warm: int = WARM, minutes: float = float("inf"), progress=False
) -> dict:
    """Run all plans, or those that `minutes` suffice for: counts, failures with their seeds, and memory."""
    failures, noted, done, start = [], [], [], time.perf_counter()
    for number, plan in enumerate(tqdm(plans, disable=not progress, mininterval=10)):
        if time.perf_counter() - start > 60 * minutes:
            break
        if number % every == 0:
            noted.append((number, resident(), living(Cache)))
        done.append(plan)
        try:
            run(plan)
        except Exception as error:  # one failure must not hide the others
            failures.append({"seed": plan.seed, "error": f"{type(error).__name__}: {error}"[:600], **asdict(plan)})
            if progress:
                tqdm.write(f"seed {plan.seed}: {failures[-1]['error'][:300]}")
    noted.append((len(done), resident(), living(Cache)))
    return {
        "generations": len(done),
        "seconds": time.perf_counter() - start,
        "counts": counts(done),
        "failures": failures,
        "memory": memory(noted, warm),
    }


def counts(plans: list[Plan]) -> dict[str, dict[str, int]]:
    """How many generations of each kind there were."""
    kinds = {
        "way": lambda plan: plan.way,
        "runtime": lambda plan: plan.runtime,
        "model": lambda plan: plan.subject[0],
        "numbers": lambda plan: plan.subject[2],
        "rows": lambda plan: str(len(plan.lengths)),
        "draft": lambda plan: plan.draft if plan.way == "lossless" else "",
        "reloaded": lambda plan: str(plan.reload),
    }
    found = {name: Counter(map(kind, plans)) for name, kind in kinds.items()}
    return {name: dict(sorted(found.items())) for name, found in found.items()}


def resident() -> int:
    """Bytes of memory that this process holds (Linux)."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def living(kind: type) -> int:
    """Objects of a kind that nobody has let go of."""
    return sum(issubclass(type(each), kind) for each in gc.get_objects())  # isinstance would wake lazy modules


def memory(noted: list[tuple[int, int, int]], warm: int) -> dict:
    """The line through resident memory after the warm-up; leaks: whether it rises more than STEEP allows."""
    later = [(number, size) for number, size, _ in noted if number >= warm]
    slope, error = line(later) if len(later) > 3 else (0.0, 0.0)
    return {
        "noted": [{"generation": number, "bytes": size, "caches": caches} for number, size, caches in noted],
        "bytes_per_generation": slope,
        "standard_error": error,
        "allowed": STEEP,
        "caches_alive": noted[-1][2],
        "leaks": bool(slope - 2 * error > STEEP),
    }


def line(points: list[tuple[int, int]]) -> tuple[float, float]:
    """Slope of a least-squares line, and its standard error."""
    x, y = np.array(points, dtype=float).T
    x = x - x.mean()
    slope = (x @ y) / (x @ x)
    rest = y - y.mean() - slope * x
    return float(slope), float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))


def said(record: dict) -> str:
    found = record["memory"]
    seeds = ", ".join(str(each["seed"]) for each in record["failures"]) or "none"
    sizes = [each["bytes"] / 1e6 for each in found["noted"]]
    return (
        f"{record['generations']:,} generations in {record['seconds'] / 60:.1f} minutes\n"
        f"failures: {len(record['failures'])} (seeds: {seeds})\n"
        f"memory: {sizes[0]:.0f} MB at the start, {max(sizes):.0f} at most, {sizes[-1]:.0f} at the end; "
        f"{found['bytes_per_generation']:.0f} bytes per generation after the warm-up (standard error "
        f"{found['standard_error']:.0f}, allowed {found['allowed']}); {found['caches_alive']} caches alive"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
