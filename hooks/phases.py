"""What the training thread is doing, in the header while it does it and as PHASE spans afterwards.

    flow        startup, then data, forward, backward, optimizer, other as the hooks see them come and go
    evaluation  between model.eval() and model.train()
    overlays    checkpoint, load, compile, partition and `with phase(...)`: on top of both, nested

The one in force is the innermost overlay, else evaluation, else the flow. Spans are cut wherever it changes: they never
overlap, so over a step they add up to the step, with `other` as the rest (it gets no spans).
"""

from __future__ import annotations

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.wire import Phase

# Members by name of their own: in Python 3.11 each `Phase.DATA` is a call, and the hooks run between kernels, with cold caches.
_EVALUATION = Phase.EVALUATION
_OTHER = Phase.OTHER
_STARTUP = Phase.STARTUP
_KIND_PHASE = wire.EventKind.PHASE


class Phases:
    """The phases of the training thread; other threads must not call this."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.flow = _STARTUP
        self.evaluating = False
        self._overlays: list[Phase] = []
        self._in_force = _STARTUP
        self._begin = recorder.ring["phase_begin_ns"]

    @property
    def in_force(self) -> Phase:
        """The phase that the header shows."""
        return self._in_force

    def set_flow(self, phase: Phase, now: int) -> None:
        """The flow has come to `phase`."""
        self.flow = phase
        self._settle(now)

    def set_evaluating(self, evaluating: bool, now: int) -> None:
        """Evaluation begins or ends."""
        self.evaluating = evaluating
        self._settle(now)

    def push(self, phase: Phase, now: int) -> int:
        """Lay a phase on top; the returned depth ends it again."""
        self._overlays.append(phase)
        self._settle(now)
        return len(self._overlays) - 1

    def pop(self, depth: int, now: int) -> None:
        """End the overlay of this depth and all within it."""
        del self._overlays[depth:]
        self._settle(now)

    def _settle(self, now: int) -> None:
        phase = self._overlays[-1] if self._overlays else _EVALUATION if self.evaluating else self.flow
        if phase is self._in_force:
            return
        if self._in_force is not _OTHER and now > self._begin:
            self._recorder.event(_KIND_PHASE, self._begin, now, code=self._in_force)
        self._in_force, self._begin = phase, now
        self._recorder.ring.enter_phase(phase, now)
