"""Prefill, dense and skipping by turns, beside the cost model's ideal.

    python benchmarks/prefill.py [--length 512 2048] [--skip 0 4 8 12] [--stock] [--shipped] [--rounds 5]

SmolLM2-135M's shape with random weights and FlexiDepth on the last half of the layers; every token skips `--skip`
layers of 30 on average, at random (replayed routes). dense: runtime "full". --stock: transformers' own prefill takes
turns as well. --shipped: the shipped plug-in instead, at its own routes over --text. Each run replaces the
cells that it measured in benchmarks/results/prefill.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import laval
from laval.files import atomic_write
from laval.measure import machine_facts, machine_peaks, paired
from laval.measure.model import model_cost
from laval.measure.speed import prefill_cell
from laval.models.switches import using

RESULTS = Path(__file__).parent / "results" / "prefill.json"
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}


def main() -> None:
    options = arguments()
    model = laval.load("smollm2") if options.shipped else random_model()
    with torch.no_grad():
        for length in options.length:
            if options.shipped:
                records = (shipped(model, length, depth, options) for depth in options.depth)
            else:
                records = cells(model, length, options)
            for record in records:
                print(line(record), flush=True)
                keep(record)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--skip", type=int, nargs="+", default=[0, 4, 8, 12])
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--depth", type=float, nargs="+", default=[26, 27, 28])
    parser.add_argument("--text", type=Path, default=Path("README.md"))
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def random_model():
    torch.manual_seed(0)
    return laval.attach(AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)).eval(), laval.FlexiDepth()).eval()


def cells(model, length: int, options) -> list[dict]:
    """Dense, and every wanted number of skipped layers, by turns on the same tokens."""
    ids = torch.randint(SHAPE["vocab_size"], (1, length), generator=torch.Generator().manual_seed(0))
    routes = {f"skip {skip}": random_routes(model, length, skip) for skip in options.skip}
    ways = {"full": prefill(model, ids, "full")} | ({"stock": prefill(model, ids, "dense")} if options.stock else {})
    ways |= {name: prefill(model, ids, "auto", run) for name, run in routes.items()}
    times = paired(ways, options.rounds, warmup=1)
    records = []
    for name in list(ways)[1:]:
        shares = routes[name].double().mean((1, 2)).tolist() if name in routes else 1.0
        ideal = model_cost(model, prompt=length, new=0, run_share=shares, peaks=machine_peaks())
        ratio = times.ratio(name)
        records.append(
            {
                "model": "random",
                "cell": name,
                "length": length,
                "seconds": {"dense": times.median("full"), "skipping": times.median(name)},
                "ratio": ratio.median,
                "interval": [ratio.low, ratio.high],
                "ideal": ideal.phase_speedup("prefill") if name in routes else 1.0,
                "rounds": times.rounds,
            }
        )
    return records


def random_routes(model, length: int, skip: int) -> torch.Tensor:
    """Routes bool [routed layers, 1, length] that skip `skip` layers of a token on average."""
    routed = len(model.policy.layers)
    return torch.rand(routed, 1, length, generator=torch.Generator().manual_seed(skip)) >= skip / routed


def prefill(model, ids, runtime: str, routes=None):
    replayed = {} if routes is None else {"routes": routes}

    def call() -> None:
        with using(model, runtime):
            model(ids, use_cache=True, logits_to_keep=1, **replayed)

    return call


def shipped(model, length: int, depth: float, options) -> dict:
    """The shipped plug-in set to `depth`, over real text."""
    laval.set_depth(model, depth)
    ids = model.tokenizer(options.text.read_text(encoding="utf-8")).input_ids
    record = prefill_cell(model, ids, length, options.rounds).to_dict()
    return record | {"model": "smollm2", "cell": f"depth {depth:g}", "length": length}


def line(record: dict) -> str:
    dense, skipping = (1e3 * record["seconds"][name] for name in ("dense", "skipping"))
    low, high = record["interval"]
    return (
        f"{record['model']:8} {record['length']:5} {record['cell']:9} {dense:8.1f} ms {skipping:8.1f} ms "
        f"{record['ratio']:.3f}x ({low:.3f} to {high:.3f}), ideal {record['ideal']:.3f}, "
        f"{record['ratio'] / record['ideal']:.2f} of it"
    )


def keep(record: dict) -> None:
    """The record in the results file, in place of an older one of the same cell."""
    names = ("model", "cell", "length")
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["records"] if RESULTS.exists() else []
    others = [each for each in kept if any(each[name] != record[name] for name in names)]
    with atomic_write(RESULTS, "w") as file:
        json.dump({"records": [*others, record | {"facts": machine_facts()}]}, file, indent=1)


if __name__ == "__main__":
    main()
