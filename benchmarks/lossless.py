"""Lossless against dense decoding on 200 prompts: the same tokens, and how many times faster.

    python benchmarks/lossless.py [--data ../shared/data] [--each 50] [--new 96] [--only copying] [--threads 2]
    python benchmarks/lossless.py --identity
    python benchmarks/lossless.py --predict

Four sets: copying, summarising, code editing, open questions. Each prompt is answered by both ways in turn, in
changing order; the ratio of a set is the median over its prompts, with a 95 % bootstrap interval. The first prompts
of each set are not timed: both ways warm up on them. What lossless decoding has learned (costs, acceptance, habits)
goes on from prompt to prompt, as in use. Can be stopped at any time and started again: every prompt is kept in
benchmarks/results/lossless.jsonl; a new start warms up, and learns, once more. Writes results/lossless.json.
--identity compares the tokens alone, which can run beside other work, and keeps a record of its own
(lossless-identity.jsonl, "identity" in the JSON). --predict prints what published models would gain by the cost
model, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import laval
from laval.files import atomic_write
from laval.measure import PairedTimes, machine_facts
from laval.models import using
from laval.speculate import lossless
from laval.speculate.predict import SHAPES, Machine, predicted_gain

HERE = Path(__file__).parent
BOOK = HERE / "results" / "lossless.jsonl"
IDENTITY = HERE / "results" / "lossless-identity.jsonl"
WARM = 2
H100 = Machine(flops=989e12, bandwidth=3.35e12)  # bf16 without sparsity, SXM, by its data sheet


def main() -> None:
    options = arguments()
    if options.predict:
        return predict()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = laval.load(options.model)
    settings = {"model": options.model, "new": options.new, "draft": options.draft, "threads": torch.get_num_threads()}
    sets = prompt_sets(options.data, options.each)
    sets = {name: prompts for name, prompts in sets.items() if options.only in (None, name)}
    if options.identity:
        compare_sets(model, sets, settings)
    else:
        measure_sets(model, sets, settings)
    write(settings)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--each", type=int, default=50, help="prompts of each set")
    parser.add_argument("--new", type=int, default=96, help="tokens at most")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--only", choices=list(SETS), help="one set")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--identity", action="store_true", help="compare tokens, measure no time")
    parser.add_argument("--predict", action="store_true", help="print predicted gains of published models and stop")
    return parser.parse_args()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def copying(data: Path) -> list[str]:
    """Five questions of the same kind would be answered in a word; what is to be copied has some length."""
    records = [r for r in lines(data / "eval" / "xquad_en.jsonl") if 200 < len(r["context"]) < 700]
    contexts = list(dict.fromkeys(r["context"] for r in records))
    return [f"Repeat this text exactly, word for word:\n\n{context}" for context in contexts]


def summarising(data: Path) -> list[str]:
    documents = [r["document"] for r in lines(data / "eval" / "dialogsum_test.jsonl")]
    return [f"Summarize this dialogue.\n\n{document}" for document in dict.fromkeys(documents)]


def editing(data: Path) -> list[str]:
    codes = [r["code"].replace("\r", "") for r in lines(data / "eval" / "mbpp.jsonl")]
    ask = "Rewrite this Python code with the function renamed to solve and a docstring added:\n\n"
    return [ask + code for code in codes if 150 < len(code) < 800]


def questions(data: Path) -> list[str]:
    turns = [r["turns"][0] for r in lines(data / "eval" / "mt_bench_questions.jsonl")]
    return turns + [r["instruction"] for r in lines(data / "eval" / "user_oriented_instructions.jsonl")]


SETS = {"copying": copying, "summarising": summarising, "editing": editing, "open": questions}


def prompt_sets(data: Path, each: int) -> dict[str, list[str]]:
    """The first `each` prompts of every set, and some more to warm up with."""
    if not (data / "eval").is_dir():
        raise SystemExit(f"{data} has no folder eval; expected the data sets there: give their place with --data")
    return {name: read(data)[: each + WARM] for name, read in SETS.items()}


def measure_sets(model, sets: dict[str, list[str]], settings: dict) -> None:
    done = known(BOOK, settings)
    left = [(name, n) for name, prompts in sets.items() for n in range(len(prompts)) if (name, n) not in done]
    if left and done:
        for prompt in sets[left[0][0]][:WARM]:
            measured(model, prompt, settings, 0)
    for name, number in left:
        record = settings | {"set": name, "number": number} | measured(model, sets[name][number], settings, number)
        print(f"{name} {number}: {record['dense'] / record['lossless']:.2f}x, same: {record['same']}", flush=True)
        note(BOOK, record)


def compare_sets(model, sets: dict[str, list[str]], settings: dict) -> None:
    """Tokens alone."""
    settings = timeless(settings)
    done = known(IDENTITY, settings)
    for name, prompts in sets.items():
        for number in (n for n in range(len(prompts)) if (name, n) not in done):
            record = measured(model, prompts[number], settings, number)
            del record["dense"], record["lossless"], record["seconds"]
            print(f"{name} {number}: same: {record['same']}", flush=True)
            note(IDENTITY, settings | {"set": name, "number": number} | record)


def timeless(settings: dict) -> dict:
    """The settings that matter for tokens."""
    return {name: value for name, value in settings.items() if name != "threads"}


def note(book: Path, record: dict) -> None:
    with book.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def measured(model, prompt: str, settings: dict, number: int) -> dict:
    """Seconds of both ways on one prompt, the one that goes first changing from prompt to prompt."""
    ids = encoded(model.tokenizer, prompt).to(model.device)
    limits = {"max_new_tokens": settings["new"], "do_sample": False}
    ways = {
        "dense": lambda: plain(model, ids, limits),
        "lossless": lambda: lossless(model, ids, settings["draft"], **limits),
    }
    seconds, made = {}, {}
    for way in list(ways) if number % 2 else list(ways)[::-1]:
        start = time.perf_counter()
        made[way] = ways[way]()
        seconds[way] = time.perf_counter() - start
    same = made["dense"].tolist() == made["lossless"].ids.tolist()
    return seconds | {"same": same, "prompt_tokens": ids.shape[1]} | made["lossless"].account.to_dict()


def plain(model, ids: torch.Tensor, limits: dict) -> torch.Tensor:
    with using(model, "full"):
        return model.generate(ids, **limits)


def encoded(tokenizer, prompt: str) -> torch.Tensor:
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids


def known(book: Path, settings: dict) -> dict[tuple, dict]:
    """Records of earlier starts with the same settings."""
    if not book.exists():
        return {}
    records = [r for r in lines(book) if all(r.get(name) == value for name, value in settings.items())]
    return {(record["set"], record["number"]): record for record in records}


def write(settings: dict) -> None:
    done = known(BOOK, settings)
    sets = {name: summary([r for (s, n), r in done.items() if s == name and n >= WARM]) for name in SETS}
    sets = {name: found for name, found in sets.items() if found}
    for name, found in sets.items():
        print(f"{name:12} {found['ratio']:.2f}x ({found['interval'][0]:.2f} to {found['interval'][1]:.2f})", found)
    compared = identity(list(known(IDENTITY, timeless(settings)).values()))
    print("identity", compared)
    with atomic_write(HERE / "results" / "lossless.json", "w") as file:
        record = {"facts": machine_facts(), "settings": settings, "sets": sets, "identity": compared}
        json.dump(record, file, indent=1)


def identity(records: list[dict]) -> dict:
    """How many answers were the same, and how much of them was drafted, over all sets."""
    totals = {key: sum(r[key] for r in records) for key in ("new_tokens", "passes", "replays", "replayed")}
    drafts = {what: added(r[what] for r in records) for what in ("rounds", "accepted")}
    return {"prompts": len(records), "identical": sum(r["same"] for r in records), **totals, **drafts}


def summary(records: list[dict]) -> dict | None:
    """One set: speed by prompt and as a whole, identity, and what the drafts did."""
    if not records:
        return None
    dense, own = (tuple(r[way] for r in records) for way in ("dense", "lossless"))
    ratio = PairedTimes({"dense": dense, "lossless": own}).ratio("lossless")
    totals = {key: sum(r[key] for r in records) for key in ("new_tokens", "passes", "replays", "replayed")}
    drafts = {what: added(r[what] for r in records) for what in ("rounds", "proposed", "accepted", "seconds")}
    return {
        "prompts": len(records),
        "identical": sum(r["same"] for r in records),
        "ratio": ratio.median,
        "interval": [ratio.low, ratio.high],
        "ratio_of_sums": sum(dense) / sum(own),
        "dense_tokens_per_second": totals["new_tokens"] / sum(dense),
        "tokens_per_pass": (totals["new_tokens"] - len(records)) / max(totals["passes"], 1),
        **totals,
        **drafts,
    }


def added(counts) -> dict[str, float]:
    total: dict[str, float] = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0) + value
    return total


def predict() -> None:
    """Gains by the cost model: bf16 weights, 512 tokens of context, batch 1, an H100's data sheet."""
    print("gain (drafted tokens) by acceptance           0.5         0.7         0.8         0.9")
    for name, shape in SHAPES.items():
        half, quarter = shape.layers // 2, shape.layers // 4
        kinds = {
            "free (lookup, n-grams)": {},
            f"exit at {quarter} of {shape.layers} layers": {"exit_layers": quarter},
            f"skip at {shape.layers - quarter} of {shape.layers}": {"depth": shape.layers - quarter},
            f"skip at {half} of {shape.layers}": {"depth": half},
        }
        for kind, draft in kinds.items():
            found = [predicted_gain(shape, a, H100, **draft) for a in (0.5, 0.7, 0.8, 0.9)]
            cells = "  ".join(f"{p.gain:5.2f} ({p.tokens:2})" for p in found)
            print(f"{name:14} {kind:24} {cells}")


if __name__ == "__main__":
    main()
