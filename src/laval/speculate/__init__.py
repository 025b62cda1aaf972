"""Lossless decoding: cheap drafts propose tokens, the dense model verifies several in one pass."""

from __future__ import annotations

from laval.speculate.decode import Lossless, lossless
from laval.speculate.result import Account, LosslessGeneration

__all__ = ["Account", "Lossless", "LosslessGeneration", "lossless"]
