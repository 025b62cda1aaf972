"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import fnmatch
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomic_write(path: str | Path, mode: str = "wb", bytes_needed: int | None = None) -> Iterator[IO]:
    """Open a temporary sibling of `path`; it takes the place of `path` only when the block ends well.

    mode: "wb" or "w" (UTF-8). A writer that wants a name may be given `file.name`.
    Errors: whatever the block raises, with the old file intact; a full disk is an OSError that says what to do.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(path)
    with _cleared_on_error(path, temporary, bytes_needed):
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        if path.exists():
            shutil.copymode(path, temporary)
        _sync(temporary)
        os.replace(temporary, path)
    _sync_folder(path.parent)


@contextmanager
def atomic_folder(path: str | Path, discard: Iterable[str] = (), bytes_needed: int | None = None) -> Iterator[Path]:
    """Give an empty sibling folder to fill; it takes the place of `path` only when the block ends well.

    Old files that the block does not write again are kept, except those whose relative name fits a pattern of
    `discard` (weights of an earlier save, say). A stop between the two renames leaves the old folder as
    `.NAME.old`; `recover_folder` (called here first) brings it back.
    Errors: as `atomic_write`; ValueError when `path` is a file, or holds the current folder.
    """
    path = Path(path).resolve()
    _check_folder(path)
    recover_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(path)
    with _cleared_on_error(path, temporary, bytes_needed):
        temporary.mkdir()
        yield temporary
        if path.exists():
            _carry_over(path, temporary, tuple(discard))
        for file in temporary.rglob("*"):
            if file.is_file() and not file.is_symlink():
                _sync(file)
        _swap(temporary, path)


def recover_folder(path: str | Path) -> bool:
    """Finish a folder swap that was cut off; True when the old folder had to be brought back."""
    path = Path(path).resolve()
    backup = _backup(path)
    if not backup.exists():
        return False
    if path.exists():  # the new folder is whole: only the clearing up was missed
        shutil.rmtree(backup)
        return False
    os.replace(backup, path)
    return True


def _swap(temporary: Path, path: Path) -> None:
    backup = _backup(path)
    had_old = path.exists()
    if had_old:
        os.replace(path, backup)
    try:
        os.replace(temporary, path)
    except BaseException:
        if had_old:
            os.replace(backup, path)
        raise
    _sync_folder(path.parent)
    if had_old:
        shutil.rmtree(backup, ignore_errors=True)


def _carry_over(old: Path, new: Path, discard: tuple[str, ...]) -> None:
    """Link (or copy) into `new` every file of `old` that it lacks."""
    for source in sorted(old.rglob("*")):
        name = source.relative_to(old)
        target = new / name
        if os.path.lexists(target) or any(fnmatch.fnmatch(name.as_posix(), pattern) for pattern in discard):
            continue
        if source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(os.readlink(source))
        elif source.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in FULL:
            raise
        shutil.copy2(source, target)  # some file systems have no hard links


@contextmanager
def _cleared_on_error(path: Path, temporary: Path, bytes_needed: int | None) -> Iterator[None]:
    """Remove the temporary whatever went wrong (Ctrl-C too), and explain a full disk."""
    try:
        yield
    except BaseException as error:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        if _is_full(error):
            raise OSError(errno.ENOSPC, _full_message(path, bytes_needed)) from error
        raise


def _is_full(error: BaseException) -> bool:
    # safetensors reports a full disk as its own error, with only the text to tell it by
    return getattr(error, "errno", None) in FULL or os.strerror(errno.ENOSPC) in str(error)


def _full_message(path: Path, bytes_needed: int | None) -> str:
    needed = f"{bytes_needed:,} bytes are needed and " if bytes_needed is not None else ""
    free = shutil.disk_usage(path.parent).free
    old = "what was there before is intact" if path.exists() else "nothing was written"
    return f"no space left to save {path}: {needed}{free:,} are free; {old}. Free some space or save elsewhere"


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"path={path}: expected a folder, found a file; choose another name")
    if path == Path.cwd() or path in Path.cwd().parents:
        raise ValueError(f"path={path}: holds the current folder and cannot be swapped; name a folder inside it")


def _sibling(path: Path) -> Path:
    # not tempfile: its files are private (0600) whatever the umask says
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _backup(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make a rename durable, where the system lets a folder be opened."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError:
            pass  # the rename itself has happened; some file systems cannot sync a folder
        finally:
            os.close(handle)
