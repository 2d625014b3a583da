"""Which steps become traces: the faulty, the slow, and every Nth, within a budget of spans. Pure; decided afterwards.

    seconds of a step, faulty? -> Sampler.reason -> "faulty" | "slow" | "every" | None
    spans of a kept step       -> Budget.take    -> False when they are over budget
"""

from __future__ import annotations

import statistics
from collections import deque

REMEMBERED_STEPS = 100
LEAST_STEPS = 20  # before there is a normal step to be slower than
SAVED_SECONDS = 60.0  # of budget, so that a large step fits in at all


class Sampler:
    """Decides step by step. `slow_factor` is over the median of the last REMEMBERED_STEPS."""

    def __init__(self, every: int, slow_factor: float) -> None:
        self._every, self._slow_factor = every, slow_factor
        self._seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)

    def reason(self, step: int, seconds: float | None, *, faulty: bool) -> str | None:
        """Why a step is kept; None when it is not. `seconds` None: nobody finished it."""
        normal = statistics.median(self._seconds) if len(self._seconds) >= LEAST_STEPS else None
        if seconds is not None:
            self._seconds.append(seconds)
        if faulty:
            return "faulty"
        if normal is not None and seconds is not None and seconds > self._slow_factor * normal:
            return "slow"
        return "every" if step % self._every == 0 else None


class Budget:
    """So many spans a second; what is not used is saved for SAVED_SECONDS."""

    def __init__(self, spans_per_second: float) -> None:
        self._rate = spans_per_second
        self._saved = self._most = spans_per_second * SAVED_SECONDS
        self._at_ns: int | None = None

    def take(self, spans: int, now_ns: int) -> bool:
        """Spend on a step; False, and nothing is spent, when there is not enough."""
        if self._at_ns is not None:
            self._saved = min(self._most, self._saved + self._rate * (now_ns - self._at_ns) / 1e9)
        self._at_ns = now_ns
        if spans > self._saved:
            return False
        self._saved -= spans
        return True
