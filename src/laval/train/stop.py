"""Ctrl-C and kill: the running step is finished and saved first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """A wish to stop. `asked` is set by the first signal; a second one does not wait."""

    def __init__(self):
        self.asked = False

    def __call__(self, number, frame) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this step; once more to stop at once, with the last checkpoint", flush=True)

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether any rank was asked; all ranks get the same answer, for they must stop at the same step."""
        if accelerator.num_processes == 1:
            return self.asked
        return bool(accelerator.reduce(torch.tensor(float(self.asked), device=accelerator.device)).item())


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Inside, signals set the Stop that is handed out (Python delivers them to the main thread only)."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
