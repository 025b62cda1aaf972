"""From files to sequences of equal length, drawn by weight in an order that the seed alone decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import Dataset

from laval.text import conversation, read, records, rendered
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
    """Sequences for `tokens` tokens. ValueError for files that are missing, empty, too short or unreadable."""
    check_tokenizer(tokenizer)
    read = [source_tokens(source, tokenizer) for source in data.sources]
    for source, ids in zip(data.sources, read, strict=True):
        check_length(source, len(ids), data.length)
    count = max(1, tokens // data.length)
    return Sequences(read, [source.weight for source in data.sources], data.length, count, seed)


def check_data(data: Data, tokenizer) -> None:
    """ValueError where `sequences` would raise one. All is read, and as little tokenized as it takes to know."""
    check_tokenizer(tokenizer)
    for source in data.sources:
        found = 0
        for text in texts(source, tokenizer):  # to the end: the last record may be the broken one
            if found < data.length:
                found += len(token_ids(text, tokenizer))
        check_length(source, found, data.length)


def check_tokenizer(tokenizer) -> None:
    if tokenizer is None:
        raise ValueError("model.tokenizer is missing; expected the base model's own, to read text with")


def check_length(source: Source, found: int, length: int) -> None:
    if found < length:
        raise ValueError(
            f"{source.path} holds {found} tokens; expected at least one sequence of {length}: add text or lower length"
        )


def source_tokens(source: Source, tokenizer) -> torch.Tensor:
    """All tokens of a source that are not held out, int64 [N]."""
    ids: list[int] = []
    for text in texts(source, tokenizer):
        ids += token_ids(text, tokenizer)
    return torch.tensor(ids, dtype=torch.long)


def token_ids(text: str, tokenizer) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def texts(source: Source, tokenizer) -> Iterator[str]:
    """Whole text files, and conversations one by one in the chat template."""
    for path in files(source.path):
        kind = source.kind if source.kind != "auto" else ("chat" if path.suffix == ".jsonl" else "text")
        if kind == "text":
            if source.hold_out:
                raise ValueError(
                    f"hold_out is {source.hold_out}; {path} is plain text, only chat has records to hold out"
                )
            yield read(path)
            continue
        for number, line in records(path):
            if not held_out(line, source.hold_out):
                yield rendered(conversation(line, path, number), tokenizer, path)


def files(path: Path) -> list[Path]:
    """The file itself, or all files below a folder by name, hidden ones left out."""
    path = Path(path).expanduser()
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and is_plain(p, path))
    if not found:
        raise ValueError(f"path is {path}, which is no file and no folder with files; expected text or chat JSONL")
    return found


def is_plain(path: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


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
