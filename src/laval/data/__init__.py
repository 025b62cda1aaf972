"""Text for models of bytes and characters: read from plain files, cleaned, kept as a token file, rolled and cut."""

from __future__ import annotations

from laval.data.clean import LANGUAGES, clean
from laval.data.shifts import CyclicShifts
from laval.data.tokens import Inputs, Tokens, open_tokens, prepare
from laval.data.vocabulary import Bytes, Characters

__all__ = ["LANGUAGES", "Bytes", "Characters", "CyclicShifts", "Inputs", "Tokens", "clean", "open_tokens", "prepare"]
