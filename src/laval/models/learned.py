"""Break-even rules learned on this machine, kept in the cache folder."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch

from laval.files import atomic_write
from laval.machine import cache_folder, machine_key
from laval.models.depth import known_depth
from laval.models.modeling import AdaptiveForCausalLM
from laval.runtime import BreakEven
from laval.runtime.break_even import Measured

log = logging.getLogger("laval")

FORMAT = 2  # 1 had ratios without intervals
REACH = 0.6  # layers of mean depth over which a rule still holds
SAME = 0.05  # a rule learned this near replaces the older one


def known(model: AdaptiveForCausalLM) -> BreakEven | None:
    """The rule learned on this machine for such a model nearest to the depth it is set to; None if none is near."""
    depth = known_depth(model) if model.policy.layers else None
    if depth is None:
        return None
    near = [rule for rule in read(rules_file()).get(key_of(model), []) if abs(rule.depth - depth) <= REACH]
    return min(near, key=lambda rule: abs(rule.depth - depth), default=None)


def keep(model: AdaptiveForCausalLM, rule: BreakEven) -> None:
    """Write a rule down for later; a folder that cannot be written is a warning."""
    path, key = rules_file(), key_of(model)
    rules = read(path)
    others = [other for other in rules.get(key, []) if abs(other.depth - rule.depth) > SAME]
    rules[key] = [*others, rule]
    try:
        with atomic_write(path, "w") as file:
            found = {key: [asdict(rule) for rule in kept] for key, kept in rules.items()}
            json.dump({"format": FORMAT, "rules": found}, file, indent=1)
    except OSError as error:  # read-only or full: only the next learning costs its minute again
        log.warning("the break-even rule of this machine is not kept in %s: %s", path, error)


def rules_file() -> Path:
    return cache_folder() / "break_even.json"


def key_of(model: AdaptiveForCausalLM) -> str:
    """What decides where skipping loses, beside the depth: the machine, the base's sizes, the plug-in's."""
    weights = "int8" if any(tensor.dtype == torch.uint8 for tensor in model.base.buffers()) else "plain"
    sizes = json.dumps([model.config.base_shape, model.config.method], sort_keys=True)
    return f"{machine_key(model.device, model.base.dtype)} | {weights} weights | {sizes}"


def read(path: Path) -> dict[str, list[BreakEven]]:
    """All rules by key; none, with a warning that says why, when the file cannot be read (it can be made again)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    try:
        kept = json.loads(text)
        if kept.get("format", 1) != FORMAT:
            warn_once(path, f"they are of format {kept.get('format', 1)} and this version reads {FORMAT}")
            return {}
        return {key: [rule_of(record) for record in records] for key, records in kept["rules"].items()}
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        warn_once(path, f"the file is damaged ({type(error).__name__}: {error})")
        return {}


@cache
def warn_once(path: Path, reason: str) -> None:
    log.warning("the break-even rules in %s are ignored: %s; learn again: laval bench MODEL --learn", path, reason)


def rule_of(record: dict) -> BreakEven:
    """ValueError, TypeError, KeyError or AttributeError for anything but what `keep` wrote."""
    tables = [
        {positive(int(rows)): measured_of(found) for rows, found in record[name].items()}
        for name in ("decode", "prefill")
    ]
    return BreakEven(float(record["depth"]), *tables, device=str(record["device"]))


def measured_of(found: dict) -> Measured:
    numbers = (positive(float(found[name])) for name in ("ratio", "low", "high"))
    return Measured(*numbers, rounds=positive(int(found["rounds"])))


def positive(number):
    if not 0 < number < float("inf"):
        raise ValueError(f"{number}: expected more than 0, and finite")
    return number
