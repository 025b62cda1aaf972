"""How a piece of text is shown, and what kind of token it is."""

import re
import unicodedata

from laval.report.trace import Trace

KINDS = ("start of word", "continuation", "digit", "punctuation", "whitespace", "special", "part of a character")
SPECIAL = re.compile(r"<\|[^|]*\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>")


def shown(piece: str) -> str:
    """The piece with characters that would harm a page or a terminal replaced; newline and tab stay."""
    return piece if piece.isprintable() else "".join(map(_shown_character, piece))


def _shown_character(char: str) -> str:
    code = ord(char)
    if char in "\n\t":
        return char
    if code < 0x20:
        return chr(0x2400 + code)  # control pictures: NUL is ␀, ESC is ␛
    if code == 0x7F:
        return "␡"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"  # half a surrogate pair cannot be written as UTF-8
    if code < 0xA0 and unicodedata.category(char) == "Cc" or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return f"⟨{code:02X}⟩"  # also bidi overrides, which would turn the text after them round
    return char


def label(piece: str, width: int = 9) -> str:
    """A short name for a token on an axis: no line breaks, at most `width` characters."""
    if not piece:
        return "·"
    if piece.isspace():
        marks = piece.replace("\n", "↵").replace("\t", "⇥")
        text = "".join("␣" if mark.isspace() else mark for mark in marks)
    else:
        text = " ".join(shown(piece).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def kind_of(piece: str, previous: str = "") -> str:
    """One of KINDS. `previous` is the piece before: a word that follows a letter continues it."""
    if not piece:
        return "part of a character"
    if piece.isspace():
        return "whitespace"
    if SPECIAL.fullmatch(piece.strip()):
        return "special"
    classes = {unicodedata.category(char)[0] for char in piece}
    if "L" in classes:
        follows = previous[-1:].isalnum() or unicodedata.category(previous[-1:] or " ")[0] == "M"
        return "continuation" if follows and not piece[0].isspace() else "start of word"
    if "N" in classes:
        return "digit"
    return "continuation" if "M" in classes else "punctuation"


def depth_by_kind(trace: Trace) -> dict[str, tuple[int, float]]:
    """For each kind that occurs: number of tokens, and their mean depth."""
    depths: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for row in trace.rows():
        previous = ""
        for piece, depth in zip(row.pieces, row.depth, strict=True):
            depths[kind_of(piece, previous)].append(depth)
            previous = piece or previous
    return {kind: (len(found), sum(found) / len(found)) for kind, found in depths.items() if found}
