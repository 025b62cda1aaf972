"""From files to sequences of equal length, drawn by weight in an order that the seed alone decides."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch.utils.data import Dataset

from laval.train.recipe import Data, Source


class Sequences(Dataset):
    """`count` sequences of `length` tokens from several sources, each shuffled and gone through before it repeats."""

    def __init__(self, tokens: list[torch.Tensor], weights: list[float], length: int, count: int, seed: int):
        self.rows = [cut(ids, length) for ids in tokens]  # each [n, length]
        self.order = draw([len(rows) for rows in self.rows], weights, count, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        source, row = self.order[index]
        return {"input_ids": self.rows[source][row]}


def sequences(data: Data, tokenizer, tokens: int, seed: int) -> Sequences:
    """Training sequences for `tokens` tokens. ValueError for files that are missing, empty or too short."""
    read = [source_tokens(source, tokenizer) for source in data.sources]
    for source, ids in zip(data.sources, read, strict=True):
        if len(ids) < data.length:
            raise ValueError(f"{source.path} holds {len(ids)} tokens; expected at least one sequence of {data.length}")
    count = max(1, tokens // data.length)
    return Sequences(read, [source.weight for source in data.sources], data.length, count, seed)


def source_tokens(source: Source, tokenizer) -> torch.Tensor:
    """All tokens of a source that are not held out, int64 [N]."""
    ids: list[int] = []
    for text in texts(source):
        if isinstance(text, list):
            text = tokenizer.apply_chat_template(text, tokenize=False)
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def texts(source: Source):
    """Plain strings, or chats as lists of messages."""
    for path in files(source.path):
        kind = source.kind if source.kind != "auto" else ("chat" if path.suffix == ".jsonl" else "text")
        if kind == "text":
            yield path.read_text(encoding="utf-8")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip() and not held_out(line, source.hold_out):
                yield messages(line, path, number)


def files(path: Path) -> list[Path]:
    path = Path(path).expanduser()
    found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not found or not found[0].is_file():
        raise ValueError(f"path is {path}, which is no file and no folder with files; expected text or chat JSONL")
    return found


def messages(line: str, path: Path, number: int) -> list[dict[str, str]]:
    try:
        chat = json.loads(line)["messages"]
        return [{"role": turn["role"], "content": turn["content"]} for turn in chat]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f'{path}, line {number}: expected {{"messages": [{{"role", "content"}}, ...]}}; got {line[:60]!r}'
        ) from error


def held_out(line: str, share: float) -> bool:
    """Whether a record belongs to the held-out share: by hash, so that evaluation finds the same ones."""
    return int(hashlib.sha1(line.encode()).hexdigest()[:8], 16) < share * 2**32


def cut(ids: torch.Tensor, length: int) -> torch.Tensor:
    return ids[: len(ids) // length * length].view(-1, length)  # [n, length]


def draw(sizes: list[int], weights: list[float], count: int, seed: int) -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(seed)
    picks = torch.multinomial(torch.tensor(weights), count, replacement=True, generator=generator).tolist()
    decks: list[list[int]] = [[] for _ in sizes]
    order = []
    for pick in picks:
        if not decks[pick]:
            decks[pick] = torch.randperm(sizes[pick], generator=generator).tolist()
        order.append((pick, decks[pick].pop()))
    return order
