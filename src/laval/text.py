"""Text files and chat JSONL, read the same way for training and for evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def read(path: Path) -> str:
    """What a text file holds. ValueError when it is absent, empty or not UTF-8."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected a text file, or chat as .jsonl")
    try:
        written = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; convert the file to UTF-8") from error
    if not written.strip():
        raise ValueError(f"{path}: the file is empty; expected text")
    return written


def records(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a JSONL file that are not blank."""
    for number, line in enumerate(read(path).split("\n"), 1):  # not splitlines: JSON may hold U+2028
        if line.strip():
            yield number, line


def conversation(line: str, path: Path, number: int) -> list[dict[str, str]]:
    """The messages of one record. ValueError with file and line number for a line that is no conversation."""
    try:
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in json.loads(line)["messages"]]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}: invalid JSON ({error}); expected one record a line") from error
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(line, path, number) from error
    if not turns or not all(isinstance(value, str) for turn in turns for value in turn.values()):
        raise unreadable(line, path, number)
    return turns


def unreadable(line: str, path: Path, number: int) -> ValueError:
    return ValueError(
        f'{path}, line {number}: expected {{"messages": [{{"role", "content"}}, ...]}} with text in each; '
        f"got {line.strip()[:60]!r}"
    )


def rendered(turns: list[dict[str, str]], tokenizer, path: Path) -> str:
    """A conversation in the tokenizer's chat template. ValueError when it has none."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"{path}: the tokenizer has no chat template; give plain text, or an instruction-tuned model")
    return tokenizer.apply_chat_template(turns, tokenize=False)
