"""Fixtures that forbid what loading and saving must not do."""

from __future__ import annotations

import huggingface_hub
import pytest
import torch


@pytest.fixture
def no_pickles(monkeypatch):
    """Whoever unpickles or pickles weights fails."""

    def refuse(*_, **__):
        raise AssertionError("weights went through pickle")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)


@pytest.fixture
def no_hub(monkeypatch):
    """No test reaches the hub; the names that were asked for."""
    asked = []

    def refuse(name, **_):
        asked.append(name)
        raise ConnectionError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    return asked
