"""Checkpoints that are whole or not there, and finding the newest one."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from laval.files import atomic_folder
from laval.models import AdaptiveForCausalLM
from laval.models.plugin import load_plugin

NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".saving"
TORN = ("inline_container", "PytorchStreamWriter")  # how torch.save reports a write that failed, without an errno


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a stage, oldest first. The Trainer's state is written last, and tells whole ones."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and is_whole(path)]
    return sorted(found, key=lambda path: int(NAME.fullmatch(path.name)[1]))


def is_whole(path: Path) -> bool:
    try:
        json.loads((path / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def newest(folder: Path) -> Path | None:
    return max(checkpoints(folder), key=lambda path: int(NAME.fullmatch(path.name)[1]), default=None)


def take_over(model: AdaptiveForCausalLM, folder: Path) -> None:
    """Give `model` the policy saved in `folder`. ValueError for that of another method."""
    saved = load_plugin(folder, base=model.base)
    theirs, ours = saved.config.build_method(), model.config.build_method()
    if theirs != ours:
        raise ValueError(
            f"method: {folder} was trained with {theirs}, but the model has {ours}; go on with the same method, or "
            "choose another output folder"
        )
    model.policy.load_state_dict(saved.policy.state_dict())
    model.policy.thresholds = dict(saved.policy.thresholds)


@contextmanager
def staged(final: Path, keep: int) -> Iterator[None]:
    """Inside, `final` is written below STAGING beside it; then it takes its place, and all but the newest `keep` go.

    Whatever goes wrong, older checkpoints stay. OSError that says so for a full disk.
    """
    staging = final.parent / STAGING
    try:
        with atomic_folder(final) as new:
            with torn_writes_explained():
                yield
            for path in sorted((staging / final.name).iterdir()):
                path.rename(new / path.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for old in checkpoints(final.parent)[:-keep]:
        shutil.rmtree(old)


@contextmanager
def torn_writes_explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if any(mark in str(error) for mark in TORN):
            raise OSError(errno.ENOSPC, "torch could not write its file whole") from error
        raise
