"""Being asked to stop. Install it before the slow imports: until then a signal kills the rank, and with it the job.

SIGTERM comes from torchrun or a batch system, SIGUSR1 from a person. The handler only remembers; the step in progress
ends, the flag travels in its all-reduce, and every rank leaves after the same step.
"""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """`asked` turns true at the first SIGTERM or SIGUSR1."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Take over both signals; only the main thread may."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
