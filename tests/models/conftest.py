"""A saved plug-in, and fixtures that forbid what loading and saving must not do."""

from __future__ import annotations

import huggingface_hub
import pytest
import torch

from laval.models.plugin import save_plugin
from tests.models.folders import base, routed


@pytest.fixture
def saved(tmp_path):
    model = routed(base())
    model.policy.set_thresholds([0.49, 0.53])
    model.config.curve = [{"depth": 3.0, "taus": [0.4, 0.6]}, {"depth": 4.0, "taus": [0.1, 0.2]}]
    save_plugin(model, tmp_path / "plugin")
    return model, tmp_path / "plugin"


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
