"""Bytes and characters as token ids, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

PIECE = 1 << 22  # characters encoded at once
CODES = 0x110000


class Bytes:
    """256 tokens."""

    size = 256
    characters = None
    widths = np.ones(256, dtype=np.int64)
    """UTF-8 bytes that each id stands for."""

    def encode(self, text: str | bytes) -> np.ndarray:
        return np.frombuffer(text.encode() if isinstance(text, str) else text, dtype=np.uint8)

    def decode(self, ids) -> str:
        return bytes(np.asarray(ids, dtype=np.uint8)).decode("utf-8", errors="replace")


class Characters:
    """One token for each of `characters`, numbered as they stand there."""

    def __init__(self, characters: str):
        if not characters or len(set(characters)) < len(characters):
            raise ValueError(f"characters is {characters[:60]!r}; expected each character once, and at least one")
        self.characters = characters
        self.size = len(characters)
        self.widths = np.array([len(letter.encode()) for letter in characters])
        self.table = np.full(CODES, -1, dtype=np.int32)
        self.table[codes(characters)] = np.arange(self.size)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Characters:
        """All characters of some texts, the most frequent first, as published. ValueError when there are none."""
        counts = np.zeros(CODES, dtype=np.int64)
        for text in texts:
            for piece in pieces(text):
                counts += np.bincount(codes(piece), minlength=CODES)
        if not counts.any():
            raise ValueError("the texts are empty; expected characters")
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]  # equals by code point
        return cls("".join(map(chr, order)))

    def encode(self, text: str) -> np.ndarray:
        """Ids [N]. ValueError that names the first unknown character and its place."""
        found = self.table[codes(text)]
        if len(found) and found.min() < 0:
            place = int(np.argmax(found < 0))
            raise ValueError(
                f"character {text[place]!r} at {place} of {text[max(0, place - 20) : place + 20]!r}... is unknown to "
                f"the vocabulary of {self.size}; clean the text (language), or use its own vocabulary"
            )
        return found

    def decode(self, ids) -> str:
        return "".join(self.characters[i] for i in np.asarray(ids).tolist())


def codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def pieces(text: str) -> Iterator[str]:
    """A long text in parts, so that its codes fit into memory."""
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))
