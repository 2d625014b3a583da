"""Python garbage collections as GC spans: full ones, and others that take a millisecond or more.

A collection can begin anywhere, also while this thread holds the lock of the events ring, so the callback only notes
the span; the end of the step writes it.
"""

from __future__ import annotations

import gc
from collections import deque

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder

SHORT_NS = 1_000_000
FULL_GENERATION = 2


class Pauses:
    """Between `install` and `remove`, watches the collector."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begin = 0
        self._spans: deque[tuple[int, int, int, int, int]] = deque(maxlen=4096)

    def install(self) -> None:
        """Start watching."""
        gc.callbacks.append(self._callback)

    def remove(self) -> None:
        """Stop watching."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def write(self) -> None:
        """Write the spans noted so far."""
        while self._spans:
            begin, end, step, generation, collected = self._spans.popleft()
            self._recorder.event(wire.EventKind.GC, begin, end, step=step, code=generation, values=(float(collected),))

    def _callback(self, phase: str, info: dict[str, int]) -> None:
        now = self._recorder.clock_ns()
        if phase == "start":
            self._begin = now
            return
        if self._begin and (info["generation"] == FULL_GENERATION or now - self._begin >= SHORT_NS):
            self._spans.append((self._begin, now, self._recorder.step, info["generation"], info["collected"]))
