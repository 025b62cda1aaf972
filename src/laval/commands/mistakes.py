"""What went wrong, said in one line of its own on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

from rich.console import Console


class Watched:
    """A text stream that knows whether its last line is finished."""

    def __init__(self, stream):
        self.stream, self.finished = stream, True

    def write(self, text: str) -> int:
        self.finished = text.endswith("\n") if text else self.finished
        return self.stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


@contextmanager
def whole_lines() -> Iterator[None]:
    """Inside, whoever leaves by an exception leaves no progress bar and no half line behind, on either stream."""
    with redirect_stdout(Watched(sys.stdout)) as out, redirect_stderr(Watched(sys.stderr)) as err:
        try:
            yield
        except BaseException:
            close_bars()
            for stream in (out, err):
                end_line(stream)
            raise


def close_bars() -> None:
    """A bar that nobody closed would be drawn once more, behind the error."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    for bar in tuple(getattr(tqdm, "_instances", ())):
        bar.close()


def end_line(stream: Watched) -> None:
    if not stream.finished:
        with suppress(OSError):  # the reader may be gone, and that may be the error
            stream.write("\n")
            stream.flush()


def explain(error: BaseException | str, style: str = "red") -> None:
    """One clean line on standard error."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        error = f"{error.filename}: {error.strerror.lower()}; check the name and the permissions"
    label = f"[{style} bold]error[/] " if style == "red" else ""
    console.print(label, end="")
    console.print(str(error), style=style, markup=False)
