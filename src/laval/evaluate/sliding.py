"""Bits per character over sliding windows, as published for models of characters: every character scored, once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from laval.models import ShortenedForCausalLM

LENGTH, STRIDE = 2048, 512  # of dynamic pooling; Hourglass's enwik8 model: 4096, 128


@dataclass(frozen=True)
class CharacterScore:
    """A shortened model on a text. nats: of each character scored, float64 [N]. ends: whether a segment ended at the
    character before each, bool [N]; None for a model that shortens nothing. bytes: UTF-8 bytes of the characters.
    """

    nats: torch.Tensor
    ends: torch.Tensor | None
    bytes: int | None

    @property
    def bits_per_character(self) -> float:
        return float(self.nats.mean()) / math.log(2)

    @property
    def bits_per_byte(self) -> float | None:
        """None when the bytes are not known."""
        return float(self.nats.sum()) / math.log(2) / self.bytes if self.bytes else None

    @property
    def shorten_factor(self) -> float:
        """Characters per segment; infinite where nothing commits."""
        if self.ends is None:
            return 1.0
        ended = int(self.ends.sum())
        return len(self.ends) / ended if ended else math.inf


@dataclass(frozen=True)
class Window:
    """Inputs from `start` up to `end`; of the last `scored` of them the prediction counts."""

    start: int
    end: int
    scored: int


def sliding(inputs: int, length: int, stride: int) -> list[Window]:
    """Windows that score what follows each of `inputs` tokens once, from all of `length - stride` before it or more.

    The first scores all it holds, the others their last `stride`, and the last, moved back to be full, what is left.
    ValueError for a stride that would leave tokens out.
    """
    if not 1 <= stride <= length:
        raise ValueError(
            f"stride is {stride}, length {length}; expected 1 <= stride <= length, or tokens are left out"
        )
    ends = [*range(min(length, inputs), inputs, stride), inputs]
    before = [0, *ends[:-1]]
    return [Window(max(0, end - length), end, end - seen) for seen, end in zip(before, ends, strict=True)]


def read_characters(
    model: ShortenedForCausalLM,
    ids,
    length: int = LENGTH,
    stride: int = STRIDE,
    batch: int = 16,
    first: int | None = None,
    widths=None,
    progress: bool = True,
) -> CharacterScore:
    """How a shortened model reads token ids [N], in windows of `length` inputs, a new one every `stride`.

    All but the first are scored: hand over one token of the split before (`Tokens.split("test", before=1)`), and all
    of the split are. first: an id at the head of every window instead of the token there (Hourglass: 0). widths: UTF-8
    bytes of each id (`vocabulary.widths`), for bits per byte. ValueError for fewer than two tokens.
    """
    ids = np.asarray(ids)
    if len(ids) < 2:
        raise ValueError(f"ids holds {len(ids)} tokens; expected at least 2, for the first one is not scored")
    found = sliding(len(ids) - 1, length, stride)
    parts = tqdm(grouped(found, batch), "reading", disable=not progress, leave=False)
    training = model.training
    model.eval()
    try:
        read = [forward(model, ids, part, first) for part in parts]
    finally:
        model.train(training)
    nats, ends = zip(*read, strict=True)
    return CharacterScore(
        nats=torch.cat(nats),
        ends=None if ends[0] is None else torch.cat(ends),
        bytes=None if widths is None else int(np.asarray(widths)[ids[1:]].sum()),
    )


def grouped(windows: list[Window], batch: int) -> Iterator[list[Window]]:
    """Neighbours that are as long and score as much, so many at a time: no row needs filler."""
    for _, alike in groupby(windows, key=lambda window: (window.end - window.start, window.scored)):
        alike = list(alike)
        yield from (alike[i : i + batch] for i in range(0, len(alike), batch))


@torch.inference_mode()
def forward(model, ids: np.ndarray, windows: list[Window], first: int | None):
    """Nats and segment ends at what the windows score, in text order, [scored] each."""
    rows = torch.from_numpy(np.stack([ids[window.start : window.end + 1] for window in windows]).astype(np.int64))
    inputs, scored = rows[:, :-1].clone(), windows[0].scored
    targets = rows[:, -scored:].flatten().to(model.device)
    if first is not None:
        inputs[:, 0] = first
    out = model(inputs.to(model.device), use_cache=False, logits_to_keep=scored)
    logits = out.logits.flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nats = F.cross_entropy(logits, targets, reduction="none").double().cpu()
    return nats, None if out.boundaries is None else out.boundaries[:, -scored:].flatten().cpu()
