"""What every Python hook of a rank writes through: the ring, the step in progress, the errors and the cost.

    hook -> recorder.event(...)   a record of the events ring, stamped with the step
         -> recorder.note(...)    one sentence for the report: what the hooks could not do
         -> recorder.failed(...)  an internal error: counted, said once per place, never raised

`cost_ns` adds up the time spent in hooks on calling threads; it reaches the ring at each step's end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from ranksight.hooks import wire
from ranksight.hooks.ring import Ring


class Recorder:
    """The writing end of one rank. `active` is False once the hooks are detached: hooks still in place do nothing."""

    def __init__(self, ring: Ring, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.ring, self.clock_ns = ring, clock_ns
        self.active = True
        self.pid = os.getpid()
        self.step = -1
        self.cost_ns = 0
        self._thread = threading.get_ident()
        self._failed: set[str] = set()

    def on_training_thread(self) -> bool:
        """Whether the caller is the thread that trains: the one that attached or made the default process group."""
        return threading.get_ident() == self._thread

    def adopt_thread(self) -> None:
        """Take the calling thread for the one that trains."""
        self._thread = threading.get_ident()

    def event(
        self,
        kind: wire.EventKind,
        begin_ns: int,
        end_ns: int,
        *,
        step: int | None = None,
        code: int = 0,
        name: str = "",
        layer: int = -1,
        values: tuple[float, ...] = (),
    ) -> int:
        """Write one event of the step in progress, or of `step`; returns the ticket for `Events.close`, 0 if lost."""
        ticket = self.ring.events.write(
            kind, begin_ns, end_ns, step=self.step if step is None else step, code=code,
            name=self.ring.hooks_table.string(name) if name else 0, layer=layer, values=values,
        )  # fmt: skip
        if ticket == 0:
            self.ring["hooks_errors"] += 1
        return ticket

    def note(self, text: str) -> None:
        """Say once, in a sentence, what the report should say."""
        now = self.clock_ns()
        self.event(wire.EventKind.NOTE, now, now, name=text)

    def failed(self, place: str) -> None:
        """Count the exception in flight; the first one of a place is noted with its text."""
        try:
            self.ring["hooks_errors"] += 1
            if place not in self._failed:
                self._failed.add(place)
                kind, error, _ = sys.exc_info()
                self.note(f"hooks: {place}: {kind.__name__ if kind else 'error'}: {error}")
        except Exception:
            return  # the ring itself is broken; there is nowhere left to say so

    def say_cost(self) -> None:
        """Bring the cost in the ring up to date."""
        self.ring["hooks_cost_ns"] = self.cost_ns
