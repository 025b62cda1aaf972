"""What plain files hold: text as downloaded, in a zip, in folders, or in the records of JSONL."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path


def documents(path: Path, field: str = "text") -> Iterator[bytes]:
    """Each file's bytes, each zip member's, and the `field` of each JSONL record.

    ValueError that names the place: no such file, empty, a broken zip, or a record without that field.
    """
    for file in files(path):
        for name, raw in members(file):
            if not raw.strip():
                raise ValueError(f"{name}: the file is empty; expected text")
            yield from records(name, raw, field) if name.endswith(".jsonl") else [raw]


def files(path: Path) -> list[Path]:
    """The file itself, or all files below a folder by name, hidden ones left out."""
    if path.is_file():
        return [path]
    found = [file for file in path.rglob("*") if file.is_file() and plain(file.relative_to(path))]
    if not found:
        raise ValueError(f"path is {path}, which is no file and no folder with files; expected text, zip or JSONL")
    return sorted(found)


def plain(path: Path) -> bool:
    return not any(part.startswith((".", "__MACOSX")) for part in path.parts)


def members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents: one, or those in a zip."""
    if file.suffix != ".zip":
        yield str(file), file.read_bytes()
        return
    try:
        with zipfile.ZipFile(file) as archive:
            found = [info for info in archive.infolist() if not info.is_dir() and plain(Path(info.filename))]
            for info in found:
                yield f"{file}/{info.filename}", archive.read(info)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # broken, encrypted, packed otherwise
        raise ValueError(f"{file}: cannot be unpacked ({error}); download it anew, or unpack it yourself") from error


def records(name: str, raw: bytes, field: str) -> Iterator[bytes]:
    for number, line in enumerate(raw.split(b"\n"), 1):
        if line.strip():
            yield written(line, field, f"{name}, line {number}")


def written(line: bytes, field: str, place: str) -> bytes:
    try:
        text = json.loads(line)[field]
        if isinstance(text, str):
            return text.encode()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{place}: no text under {field!r} ({error}); expected one such record a line") from error
    raise ValueError(f"{place}: {field} is {text!r}; expected text")


def fingerprint(path: Path) -> str:
    """SHA-256 over the names and contents of all files."""
    digest = hashlib.sha256()
    for file in files(path):
        digest.update(f"{file.relative_to(path) if path.is_dir() else ''}\n{checksum(file)}\n".encode())
    return digest.hexdigest()


def checksum(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
