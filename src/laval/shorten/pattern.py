"""Commits where a regular expression's match ends, as far as that can be known when the token is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

import torch

from laval.shorten.commit import Commits, Rule, Tokens

PROBES = "aB7 \n._-"
"""Characters that probes are made of, beside those that the pattern itself names."""
CLOSE = r"let it end with the character that closes a segment, such as '\s' or '\w+\s'"
LONGEST = 3
"""Characters of a probe."""
AHEAD = re.compile(r"(?<!\\)\(\?[=!]")


@dataclass(frozen=True)
class Pattern:
    """A commit at each token in which a match of `regex` ends, in the text since the last commit.

    vocabulary: the text of each token id. window: tokens that a match may span. ValueError for an expression that
    needs to see what comes next: "the letter before a space" is not known at the letter.
    """

    regex: str
    vocabulary: tuple[str, ...]
    window: int = 64

    def __post_init__(self):
        check_online(self.regex)
        if not self.vocabulary or self.window < 1:
            raise ValueError("pattern: expected a vocabulary (the text of each token) and a window of 1 or more")

    def build(self, width: int, step: float) -> PatternRule:
        return PatternRule(self.regex, self.vocabulary, self.window)


class PatternRule(Rule):
    """Walks through the tokens one by one, on the CPU. For single characters `Tokens` does the same much faster."""

    def __init__(self, regex: str, vocabulary: tuple[str, ...], window: int):
        super().__init__()
        self.regex, self.vocabulary, self.window = re.compile(regex), vocabulary, window

    def decide(self, rows, memory):
        kept = memory.recall("open", rows.batch)
        kept = rows.ids.new_full((len(rows.ids), self.window), -1) if kept is None else kept
        bits = torch.zeros_like(rows.real)
        for number, (before, ids, length) in enumerate(
            zip(kept.tolist(), rows.ids.tolist(), rows.lengths, strict=True)
        ):
            found, still_open = self.walk([token for token in before if token >= 0], ids[: int(length)])
            bits[number, : len(found)] = torch.tensor(found, dtype=torch.bool, device=bits.device)
            last = [-1] * self.window + still_open
            kept[number] = torch.tensor(last[-self.window :], device=kept.device)
        memory.keep("open", kept, rows.batch)
        return Commits(bits, rows.real)

    def walk(self, still_open: list[int], ids: list[int]) -> tuple[list[bool], list[int]]:
        """Commits of some tokens behind those of an open segment, and the segment that they leave open."""
        found = []
        for token in ids:
            before = "".join(self.vocabulary[known] for known in still_open)
            found.append(ends_in(self.regex, before, self.vocabulary[token] if token >= 0 else ""))
            still_open = [] if found[-1] else [*still_open, token][-self.window :]
        return found, still_open


def ends_in(regex: re.Pattern, before: str, text: str) -> bool:
    """Whether a match that takes something ends in `text`, which follows `before`."""
    return any(match.end() > max(len(before), match.start()) for match in regex.finditer(before + text))


def tokens_of(regex: str, vocabulary) -> Tokens:
    """The rule for an expression that single tokens decide, such as whitespace: those in which a match ends."""
    check_online(regex)
    compiled = re.compile(regex)
    return Tokens(tuple(number for number, text in enumerate(vocabulary) if ends_in(compiled, "", text)))


def check_online(regex: str) -> None:
    """ValueError if an expression is none, looks ahead, or if reading on would change where its matches have ended.

    The last is tried on short texts: where the matches of the whole end must be seen from each beginning alone.
    """
    try:
        compiled = re.compile(regex)
    except re.error as error:
        raise ValueError(f"regex {regex!r} is not a regular expression: {error}") from None
    if AHEAD.search(regex):
        raise ValueError(f"regex {regex!r} looks ahead, and cannot be decided as the text is read; {CLOSE}")
    named = [character for character in dict.fromkeys(regex) if character.isalnum() or character in "'\",;:!?"]
    letters = [*PROBES, *(character for character in named[:6] if character not in PROBES)]
    for length in range(1, LONGEST + 1):
        for probe in map("".join, product(letters, repeat=length)):
            check_probe(compiled, probe)


def check_probe(regex: re.Pattern, probe: str) -> None:
    whole = {match.end() - 1 for match in regex.finditer(probe) if match.end() > match.start()}
    start = 0
    for place, character in enumerate(probe):
        ends = ends_in(regex, probe[start:place], character)
        if ends != (place in whole):
            known = "ends there only because of what follows" if not ends else "may still go on there"
            raise ValueError(
                f"regex {regex.pattern!r} cannot be decided as the text is read: in {probe!r} a match {known} (at "
                f"{character!r}, place {place}); {CLOSE}"
            )
        start = place + 1 if ends else start
