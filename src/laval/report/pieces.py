"""The text of each token, so that the pieces joined are exactly the decoded text."""

from collections.abc import Iterable


def token_pieces(tokenizer, ids: Iterable[int]) -> list[str]:
    """Split `tokenizer.decode(ids)` into one piece per token.

    A character made of several tokens (an emoji over four bytes) belongs to the token that completes it; the
    earlier ones get ''. Special tokens are kept. Time grows linearly with the text (quadratically within
    a run of broken bytes).
    """
    ids = [int(i) for i in ids]
    full = tokenizer.decode(ids)
    ends = _ends(tokenizer, ids, full)
    return _cut(full, naive_ends(tokenizer, ids, full) if ends is None else ends)


def _cut(full: str, ends: list[int]) -> list[str]:
    starts = [0, *ends[:-1]]
    return [full[start:end] for start, end in zip(starts, ends, strict=True)] if ends else []


def naive_ends(tokenizer, ids: list[int], full: str) -> list[int]:
    """Where each token's text ends in `full`, by decoding every prefix. Quadratic; the reference."""
    ends, end = [], 0
    for i in range(len(ids)):
        end = max(end, _shared(tokenizer.decode(ids[: i + 1]), full))
        ends.append(end)
    return [*ends[:-1], len(full)] if ends else []


def _ends(tokenizer, ids: list[int], full: str) -> list[int] | None:
    """The same from a sliding window: decode from the last whole piece only.

    The piece before the window's own tokens is decoded with them, since the first token of a text may lose its
    leading space. The window moves on when its text is whole and agrees with `full`; a decoder may first show an
    unfinished character, even the bytes before it, as something else. Returns None when it never agreed again.
    """
    ends, end, agreed = [], 0, full == ""
    context, fresh, known = 0, 0, 0  # the window decodes ids[context:]; text before ids[fresh:] ends at `known`
    before = ""
    for i in range(len(ids)):
        window = tokenizer.decode(ids[context : i + 1])
        text = window[len(before) :] if window.startswith(before) else ""
        end = max(end, known + _shared(text, full, known))
        ends.append(end)
        agreed = window == before + text and end == known + len(text)
        if agreed and text and not text.endswith("\ufffd"):
            context, fresh, known = fresh, i + 1, end
            before = tokenizer.decode(ids[context:fresh])
    return ends if agreed and end == len(full) else None


def _shared(text: str, full: str, start: int = 0) -> int:
    """Length of the common prefix of `text` and `full[start:]`."""
    if full.startswith(text, start):
        return len(text)
    return next(n for n, char in enumerate(text) if start + n >= len(full) or char != full[start + n])
