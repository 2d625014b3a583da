"""MEMORY samples at step ends, at most two a second: resident set, and the allocator of a device in use."""

from __future__ import annotations

import os

import torch

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder

PERIOD_NS = 500_000_000


class Memory:
    """Samples when a step ends."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._next_ns = 0

    def step_ended(self, step: int, now: int) -> None:
        """Write a sample if the last one is old enough; two values more when a device is in use."""
        if now < self._next_ns:
            return
        self._next_ns = now + PERIOD_NS
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - a third of the time of pathlib
            values = [float(int(statm.read().split()[1]) * self._page)]
        if torch.cuda.is_initialized():
            values += [float(torch.cuda.memory_allocated()), float(torch.cuda.memory_reserved())]
        self._recorder.event(wire.EventKind.MEMORY, now, now, step=step, values=tuple(values))
