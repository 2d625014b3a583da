"""The control block: what the agent asks of this rank. Read at each step's end, without any collective.

    agent stores stop_after_step N, stop_action, then stop_request     proposed: the rank acknowledges, and goes on
    agent sees that no rank had begun step N, stores stop_committed    agreed: every rank leaves after step N
    trainer asks stop_requested()                                      -> N: leave after step N; None: go on
    a trainer that never asked                                         the hooks leave for it, after its callbacks
    agent stores detail_wanted                                         -> handed to the tap

A rank that gets to step N while it knows the proposal only waits for the answer, milliseconds as a rule: going on could
miss it, and leaving could leave alone. It waits for at most HOLD_S, in case that the agent has died.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder

HOLD_S = 30.0
_LOOK_S = 0.001


class Stop:
    """The requests of the agent. `set_detail` is the tap's."""

    def __init__(
        self,
        recorder: Recorder,
        set_detail: Callable[[wire.Detail], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.callbacks: list[Callable[[int], None]] = []  # called with the step, before the hooks leave
        self.asked = False  # the trainer asks, so it leaves by itself
        self._recorder, self._set_detail, self._sleep = recorder, set_detail, sleep
        self._last_ended = -1
        self._given_up = 0  # request that was waited for in vain

    def step_ended(self, step: int, _now: int) -> None:
        """Take in what the agent has stored."""
        ring = self._recorder.ring
        self._last_ended = step
        wanted = ring["detail_wanted"]
        if wanted and wanted != ring["detail"]:
            self._set_detail(wire.Detail(wanted))
        if ring["stop_request"]:
            self.requested(step)

    def leave(self, step: int, _now: int) -> None:
        """The last thing at a step's end: SystemExit(0) when all ranks leave here and the trainer does not ask."""
        if self.asked or not self._recorder.ring["stop_committed"]:
            return
        after = self.requested(step)
        if after is None or step < after:
            return
        if self._recorder.ring["stop_action"] == wire.StopAction.CHECKPOINT_AND_STOP:
            for callback in self.callbacks:
                try:
                    callback(step)
                except Exception:
                    self._recorder.failed("on_stop callback")
        raise SystemExit(0)

    def requested(self, step: int) -> int | None:
        """The step after which all ranks leave, None while there is none. `step` is the newest that this rank is in."""
        ring = self._recorder.ring
        give_up_ns = 0
        while True:
            request = ring["stop_request"]
            if not request or ring["stop_action"] == wire.StopAction.NONE:
                return None
            if ring["stop_acknowledged"] != request:
                ring["stop_acknowledged"] = request
            after = ring["stop_after_step"]
            if ring["stop_committed"] == request:
                return after
            if step < after or request == self._given_up:
                return None
            now = self._recorder.clock_ns()
            give_up_ns = give_up_ns or now + round(HOLD_S * 1e9)
            if now >= give_up_ns:
                self._given_up = request
                return None
            self._sleep(_LOOK_S)

    def saves(self, step: int) -> bool:
        """Whether a checkpoint should be written at this step; not when all ranks leave here because memory may be wrong."""
        ring = self._recorder.ring
        agreed = ring["stop_committed"] and ring["stop_committed"] == ring["stop_request"]
        return not (agreed and step >= ring["stop_after_step"] and ring["stop_action"] == wire.StopAction.STOP)

    def leaving(self) -> None:
        """The process ends: say after which step, when that was agreed."""
        ring = self._recorder.ring
        agreed = ring["stop_committed"] and ring["stop_committed"] == ring["stop_request"]
        if agreed and self._last_ended >= ring["stop_after_step"]:
            ring["stopped_after_step"] = self._last_ended
