"""Token files: written once from plain files, then mapped into memory; a JSON beside them says what is in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from laval.data.clean import clean, language_of
from laval.data.source import checksum, documents, fingerprint
from laval.data.vocabulary import Bytes, Characters, pieces
from laval.files import atomic_folder

IDS, ABOUT = "tokens.bin", "tokens.json"
HELD_OUT = 5  # per cent each of validation and test, as text8 and enwik8 are split
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Inputs:
    """How text becomes tokens: `bytes` or `characters`.

    language: clean the text as text8 was (en, fi, he, vi); newlines: and keep its lines. field: of JSONL records.
    characters: a vocabulary to keep to, for a model that has one; otherwise the text's own.
    """

    kind: Literal["bytes", "characters"] = "bytes"
    language: str | None = None
    newlines: bool = False
    field: str = "text"
    characters: str | None = None

    def __post_init__(self):
        if self.kind not in ("bytes", "characters"):
            raise ValueError(f"kind is {self.kind!r}; expected bytes or characters")
        if self.language is not None:
            language_of(self.language)
        if self.kind == "bytes" and (self.language or self.characters):
            raise ValueError("kind is 'bytes', which keeps every text as it is; leave out language and characters")


@dataclass(frozen=True)
class Tokens:
    """ids [N], mapped from a file; the vocabulary they belong to; about: what the JSON says."""

    ids: np.ndarray
    vocabulary: Bytes | Characters
    about: dict

    def __len__(self) -> int:
        return len(self.ids)

    def split(self, name: str, before: int = 0) -> np.ndarray:
        """train, validation or test: 90, 5 and 5 % in text order. before: so many tokens ahead of it come with it, so
        that its first one can be scored too. ValueError for another name, or a split without tokens.
        """
        if name not in SPLITS:
            raise ValueError(f"split is {name!r}; expected one of {', '.join(SPLITS)}")
        held = len(self) * HELD_OUT // 100
        starts = [0, len(self) - 2 * held, len(self) - held, len(self)]
        start, end = starts[SPLITS.index(name) :][:2]
        if start == end:
            raise ValueError(f"split {name} of {len(self)} tokens is empty; expected a longer text")
        return self.ids[max(0, start - before) : end]


def prepare(path: str | Path, cache: str | Path, inputs: Inputs | None = None, renew: bool = False) -> Tokens:
    """The Tokens of a file, zip, folder or JSONL; written to a folder below `cache` when first asked for.

    Several documents are joined by newlines (by spaces, where cleaning keeps no newlines). renew: write again.
    Errors: ValueError that names the file: absent, empty, not UTF-8 (characters), broken, with unknown characters, or
    changed since it was written to the cache.
    """
    path, inputs = Path(path).expanduser().resolve(), inputs or Inputs()
    folder = Path(cache).expanduser() / name_of(path, inputs)
    source = fingerprint(path)
    if renew or not (folder / ABOUT).is_file():
        write(folder, path, inputs, source)
    found = open_tokens(folder)
    if found.about["source_sha256"] != source:
        raise ValueError(f"{path}: changed since its tokens were written to {folder}; delete them, or pass renew=True")
    return found


def open_tokens(folder: str | Path) -> Tokens:
    """The Tokens in a folder that `prepare` wrote. ValueError when they are absent, or no longer what was written."""
    folder = Path(folder)
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        whole = checksum(folder / IDS) == about["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: no readable token file ({error}); write it with `prepare`") from error
    if not whole:
        raise ValueError(f"{folder / IDS}: changed since it was written; delete the folder and prepare it anew")
    vocabulary = Bytes() if about["characters"] is None else Characters(about["characters"])
    return Tokens(np.memmap(folder / IDS, dtype=about["dtype"], mode="r"), vocabulary, about)


def name_of(path: Path, inputs: Inputs) -> str:
    """A folder of its own for each source and way to read it."""
    asked = json.dumps([str(path), asdict(inputs)], sort_keys=True)
    return f"{path.name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"


def write(folder: Path, path: Path, inputs: Inputs, source: str) -> None:
    vocabulary = vocabulary_of(path, inputs)
    dtype = np.dtype(np.min_scalar_type(vocabulary.size - 1)).newbyteorder("<")
    count = 0
    with atomic_folder(folder) as new:
        with open(new / IDS, "wb") as file:
            for ids in encoded(path, inputs, vocabulary):
                file.write(ids.astype(dtype).tobytes())
                count += len(ids)
        about = {
            "source": str(path),
            "source_sha256": source,
            "inputs": asdict(inputs),
            "characters": vocabulary.characters,
            "tokens": count,
            "dtype": dtype.str,
            "sha256": checksum(new / IDS),
        }
        (new / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", "utf-8")


def vocabulary_of(path: Path, inputs: Inputs) -> Bytes | Characters:
    if inputs.kind == "bytes":
        return Bytes()
    if inputs.characters is not None:
        return Characters(inputs.characters)
    return Characters.of(texts(path, inputs))


def encoded(path: Path, inputs: Inputs, vocabulary) -> Iterator[np.ndarray]:
    """The ids of all documents, piece by piece."""
    if inputs.kind == "bytes":
        yield from (vocabulary.encode(raw) for raw in joined(documents(path, inputs.field), b"\n", path))
        return
    for text in texts(path, inputs):
        for piece in pieces(text):
            try:
                yield vocabulary.encode(piece)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error


def texts(path: Path, inputs: Inputs) -> Iterator[str]:
    """All documents as text, what joins them included."""
    found = (decoded(raw, path) for raw in documents(path, inputs.field))
    if inputs.language is None:
        return joined(found, "\n", path)
    cleaned = (clean(text, inputs.language, inputs.newlines).strip() for text in found)
    return joined(cleaned, "\n" if inputs.newlines else " ", path)


def decoded(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; convert it, or read it as bytes") from error


def joined(parts: Iterator, between, path: Path) -> Iterator:
    """All parts but empty ones, with what comes between them. ValueError where nothing is left."""
    number = 0
    for number, part in enumerate(filter(None, parts), 1):
        if number > 1:
            yield between
        yield part
    if not number:
        raise ValueError(f"{path}: no text is left; expected some under the field, or in the language, asked for")
