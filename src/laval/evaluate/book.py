"""Records of measurements in a JSONL file that is whole at every moment, found again by what they were made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from laval.files import atomic_write


class Book:
    """Records in a JSONL file that is whole at every moment."""

    def __init__(self, path: str | Path | None):
        self.path = path and Path(path)
        self.lines = self.path.read_text("utf-8").splitlines() if self.path and self.path.exists() else []
        self.records = [json.loads(line) for line in self.lines]

    def get(self, **fields) -> dict | None:
        """The record with these fields, if there is one."""
        return next((record for record in self.records if fields.items() <= record.items()), None)

    def longest(self, **fields) -> list[int]:
        """The longest order of removal among the records with these fields."""
        return max((r["layers"] for r in self.records if fields.items() <= r.items()), key=len, default=[])

    def add(self, record: dict) -> dict:
        self.records.append(record)
        self.lines.append(json.dumps(record))
        if self.path:
            with atomic_write(self.path, "w") as file:
                file.write("\n".join(self.lines) + "\n")
        return record


def stamp_of(*things) -> str:
    """A short hash of tensors and plain values, nested in mappings, lists and dataclasses."""
    digest = hashlib.sha256()
    feed(things, digest.update)
    return digest.hexdigest()[:12]


def feed(thing, update: Callable[[bytes], None]) -> None:
    if isinstance(thing, torch.Tensor):
        update(f"{thing.dtype} {tuple(thing.shape)}".encode())
        update(thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif hasattr(thing, "__dataclass_fields__"):
        feed(vars(thing), update)
    elif isinstance(thing, Mapping):
        feed([part for pair in thing.items() for part in pair], update)
    elif isinstance(thing, list | tuple):
        update(f"[{len(thing)}".encode())
        for part in thing:
            feed(part, update)
    else:
        update(f"{thing!r},".encode())
