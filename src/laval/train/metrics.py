"""What a run leaves to read: one JSON line for every log, and an alarm when routing collapses."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from transformers import TrainerCallback

from laval.files import atomic_write

log = logging.getLogger("laval")

COLLAPSE = (0.001, 0.999)  # run rates beyond are one choice for every token
PATIENCE = 3  # logs in a row


class Metrics(TrainerCallback):
    """Appends to `path`; a resumed run first takes back the lines written after its checkpoint."""

    def __init__(self, path: Path, stage: str, layers: tuple[int, ...]):
        self.path, self.stage, self.layers = path, stage, layers
        self.start = time.time()
        self.streaks: dict[str, int] = {}
        self.warned: set[str] = set()

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if not state.is_world_process_zero:
            return
        kept = [entry for entry in read_metrics(self.path) if self.survives(entry, state.global_step)]
        with atomic_write(self.path, "w") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in kept)
        mine = [entry for entry in kept if entry["stage"] == self.stage]
        self.start = time.time() - (mine[-1]["seconds"] if mine else 0.0)

    def survives(self, entry: dict, step: int) -> bool:
        return entry["stage"] != self.stage or entry["step"] <= step

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not state.is_world_process_zero or "loss" not in (logs or {}):
            return
        alarms = self.alarms(dict(zip(self.layers, logs.get("run_rates", ()), strict=False)))
        record = {"stage": self.stage, "step": state.global_step, "seconds": round(time.time() - self.start, 1)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, **logs, "alarm": alarms}) + "\n")

    def alarms(self, rates: dict[int, float]) -> list[str]:
        """Layers that made one choice for every token, several logs in a row; each is also warned of once."""
        now = collapsed(rates)
        self.streaks = {alarm: self.streaks.get(alarm, 0) + 1 for alarm in now}
        ringing = [alarm for alarm in now if self.streaks[alarm] >= PATIENCE]
        for alarm in ringing:
            if alarm not in self.warned:
                log.warning("routing has collapsed: %s (for %d logs in a row)", alarm, PATIENCE)
        self.warned.update(ringing)
        return ringing


def collapsed(rates: dict[int, float]) -> list[str]:
    """In words, the layers (by number, with the share of tokens that ran them) that all tokens ran or skipped."""
    never = [f"layer {layer} is never skipped" for layer, rate in rates.items() if rate > COLLAPSE[1]]
    return never + [f"layer {layer} is always skipped" for layer, rate in rates.items() if rate < COLLAPSE[0]]


def read_metrics(path: Path) -> list[dict]:
    """All whole lines of a metrics file, none if there is no file; a line cut off by a kill is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def seconds_spent(path: Path) -> dict[str, float]:
    """Seconds of training by stage, stops not counted."""
    spent: dict[str, float] = {}
    for entry in read_metrics(path):
        spent[entry["stage"]] = max(entry["seconds"], spent.get(entry["stage"], 0.0))
    return spent
