"""Evaluation text: from files to token ids, from token ids to windows, from windows to batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from laval.text import conversation, read, records, rendered


@dataclass(frozen=True)
class Text:
    """Token ids int64 [N], and how many UTF-8 bytes of the text the tokens after the first stand for."""

    ids: torch.Tensor
    bytes: int | None = None

    def __len__(self) -> int:
        return len(self.ids)


def read_text(path: str | Path, tokenizer, limit: int | None = None) -> Text:
    """A text file, or chat in `.jsonl` (one {"messages": [...]} a line) rendered with the tokenizer's chat template.

    Conversations follow one another as one text. limit: at most this many tokens.
    Errors: ValueError that names the file (and the line) when it is absent, empty, not UTF-8, not chat JSONL, or
    holds fewer than two tokens, and when the tokenizer has no chat template.
    """
    path = Path(path)
    chat = path.suffix == ".jsonl"
    written = render(path, tokenizer) if chat else read(path)
    text = tokenize(written, tokenizer, limit, special=not chat)  # a chat template brings its own special tokens
    if len(text) < 2:
        raise ValueError(
            f"{path}: {len(text)} tokens to evaluate; expected at least 2, for each token is scored from those before"
        )
    return text


def tokenize(written: str, tokenizer, limit: int | None = None, special: bool = True) -> Text:
    """The first `limit` tokens of a string; special: with the tokens the tokenizer puts around a text."""
    found = tokenizer(written, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    ids, ends = found["input_ids"][:limit], [end for _, end in found["offset_mapping"]][:limit]
    if not ids:
        return Text(torch.empty(0, dtype=torch.int64), 0)
    end = ends[-1] if len(ids) < len(found["input_ids"]) else len(written)
    return Text(torch.tensor(ids), len(written[ends[0] : end].encode()))


def render(path: Path, tokenizer) -> str:
    """All conversations of a chat JSONL file, as the model was trained to read them."""
    chats = (conversation(line, path, number) for number, line in records(path))
    return "".join(rendered(chat, tokenizer, path) for chat in chats)


@dataclass(frozen=True)
class Batch:
    """Rows of text for one forward, [B, T] each: ids; the token that follows each; which positions are no pads;
    at which positions the prediction of what follows is scored."""

    ids: torch.Tensor
    targets: torch.Tensor
    valid: torch.Tensor
    scored: torch.Tensor

    @property
    def arguments(self) -> dict:
        """What a causal language model is called with."""
        inputs = {"input_ids": self.ids, "use_cache": False}
        if not self.valid.all():
            inputs["attention_mask"] = self.valid.long()
        if not self.valid[:, 0].all():
            inputs["position_ids"] = (self.valid.long().cumsum(1) - 1).clamp(min=0)
        return inputs

    def to(self, device) -> Batch:
        return Batch(*(part.to(device) for part in (self.ids, self.targets, self.valid, self.scored)))


def as_batch(batch) -> Batch:
    """A Batch from one, from ids [B, T], or from a mapping with `input_ids` and perhaps `attention_mask`."""
    if isinstance(batch, Batch):
        return batch
    ids = batch if isinstance(batch, torch.Tensor) else batch["input_ids"]
    mask = None if isinstance(batch, torch.Tensor) else batch.get("attention_mask")
    valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    scored = valid & valid.roll(-1, dims=1)
    scored[:, -1] = False
    return Batch(ids, ids.roll(-1, dims=1), valid, scored)


def windows(ids: torch.Tensor, length: int, stride: int | None = None) -> list[Batch]:
    """Text ids [N] cut into single-row batches of up to `length` inputs, a new one every `stride` (default `length`).

    Together they score every token but the first exactly once; a later window scores what the one before did not see.
    Errors: ValueError for fewer than two tokens, or a stride that would leave tokens out.
    """
    stride = length if stride is None else stride
    if not 1 <= stride <= length:
        raise ValueError(
            f"stride is {stride}, length {length}; expected 1 <= stride <= length, or tokens are left out"
        )
    if len(ids) < 2:
        raise ValueError(f"ids holds {len(ids)} tokens; expected at least 2, for the first one is not scored")
    inputs = len(ids) - 1
    cuts, scored = [], 0
    for start in range(0, inputs, stride):
        end = min(start + length, inputs)
        row = torch.arange(start, end)[None]  # [1, T]
        cuts.append(Batch(ids[row], ids[row + 1], torch.ones_like(row, dtype=torch.bool), row >= scored))
        scored = end
        if end == inputs:
            break
    return cuts


def collate(rows: list[Batch]) -> Batch:
    """Single-row batches as one, shorter rows padded on the right."""
    width = max(row.ids.shape[1] for row in rows)

    def joined(name: str) -> torch.Tensor:
        return torch.cat([pad(getattr(row, name), width) for row in rows])

    return Batch(joined("ids"), joined("targets"), joined("valid"), joined("scored"))


def pad(row: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(row, (0, width - row.shape[1]))


def text_batches(text, length: int = 512, stride: int | None = None, batch: int = 8) -> list[Batch]:
    """A Text or its ids [N], ready for forwards: `batch` windows each."""
    cuts = windows(as_text(text).ids, length, stride)
    return [collate(cuts[i : i + batch]) for i in range(0, len(cuts), batch)]


def as_text(text) -> Text:
    """A Text from one, or from any sequence of token ids."""
    return text if isinstance(text, Text) else Text(torch.as_tensor(text, dtype=torch.int64))


def as_batches(batches: Iterable) -> list[Batch]:
    """Calibration batches in any accepted form. ValueError when there are none."""
    found = [as_batch(batch) for batch in batches]
    if not found:
        raise ValueError("batches is empty; expected at least one batch of token ids [B, T]")
    return found
