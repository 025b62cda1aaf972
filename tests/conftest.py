"""What every test may rely on: fixed seeds, few threads, and the shared folder when there is one."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]

torch.set_num_threads(min(2, torch.get_num_threads()))


def shared_path(*parts: str) -> Path:
    """A file or folder of the shared folder beside the project; the calling test is skipped where it is absent."""
    path = (ROOT / ".." / "shared").joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {Path('..', 'shared', *parts)}")
    return path.resolve()


@pytest.fixture(autouse=True)
def seeds():
    """The same random numbers in every test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
