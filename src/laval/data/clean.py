"""Cleaning as text8 was cleaned, in the languages of dynamic pooling (arXiv 2211.09761): few letters, no digits."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import product

LATIN = "abcdefghijklmnopqrstuvwxyz"
TONES = ("", "\u0300", "\u0301", "\u0303", "\u0309", "\u0323")
VIETNAMESE = "bcdđghklmnpqrstvx" + "".join(
    unicodedata.normalize("NFC", vowel + tone) for vowel, tone in product("aăâeêioôơuưy", TONES)
)
HEBREW = "".join(map(chr, range(0x5D0, 0x5EB)))  # final forms too
HEBREW_POINTS = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]")
MARKERS = re.compile(r"_(?:START_ARTICLE|START_SECTION|START_PARAGRAPH|NEWLINE)_")  # of wiki40b
LOOKALIKES = str.maketrans(
    "АВЕКМНОРСТУХІЈЅ" + "асеорхуіјѕ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "ον",
    "ABEKMHOPCTYXIJS" + "aceopxyijs" + "ABEZHIKMNOPTYX" + "ov",
)
"""Cyrillic and Greek letters that look as Latin ones do."""


@dataclass(frozen=True)
class Language:
    """letters: all that is kept beside the space. digits: the words for 0 to 9. latin: lookalikes become Latin."""

    letters: str
    digits: tuple[str, ...]
    latin: bool = True


LANGUAGES = {
    "en": Language(LATIN, tuple("zero one two three four five six seven eight nine".split())),
    "fi": Language(
        LATIN + "åäö", tuple("nolla yksi kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän".split())
    ),
    "he": Language(HEBREW, tuple("אפס אחת שתיים שלוש ארבע חמש שש שבע שמונה תשע".split()), latin=False),
    "vi": Language(VIETNAMESE, tuple("không một hai ba bốn năm sáu bảy tám chín".split())),
}


def clean(text: str, language: str = "en", newlines: bool = False) -> str:
    """Lower case; digits spelt out one by one; the letters of the language and single spaces; perhaps newlines.

    The words of Hebrew digits carry no points, so that they stay whole. ValueError for a language without alphabet.
    """
    known = language_of(language)
    text = unicodedata.normalize("NFKC", MARKERS.sub("\n", text))
    text = text.translate(LOOKALIKES).lower() if known.latin else HEBREW_POINTS.sub("", text)
    text = re.sub("[0-9]", lambda digit: f" {known.digits[int(digit[0])]} ", text)
    text = re.sub(f"[^{known.letters}\n]+", " ", text)
    return re.sub(" *\n[ \n]*", "\n", text) if newlines else re.sub("[ \n]+", " ", text)


def language_of(name: str) -> Language:
    if name not in LANGUAGES:
        raise ValueError(f"language is {name!r}; expected one of {', '.join(LANGUAGES)}")
    return LANGUAGES[name]
