"""The control block: what the agent asks of this rank. Read at each step's end, without any collective.

    agent stores stop_after_step, stop_action, then stop_request   -> acknowledged at the next step's end
    trainer asks stop_requested()                                  -> N: leave after step N; None: go on
    agent stores detail_wanted                                     -> handed to the tap
"""

from __future__ import annotations

from collections.abc import Callable

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder


class Stop:
    """The requests of the agent. `set_detail` is the tap's."""

    def __init__(self, recorder: Recorder, set_detail: Callable[[wire.Detail], None]) -> None:
        self._recorder, self._set_detail = recorder, set_detail
        self._last_ended = -1

    def step_ended(self, step: int, _now: int) -> None:
        """Take in what the agent has stored."""
        ring = self._recorder.ring
        self._last_ended = step
        wanted = ring["detail_wanted"]
        if wanted and wanted != ring["detail"]:
            self._set_detail(wire.Detail(wanted))
        self.requested()

    def requested(self) -> int | None:
        """The step after which to leave; the request counts as seen by this rank."""
        ring = self._recorder.ring
        request = ring["stop_request"]
        if not request or ring["stop_action"] == wire.StopAction.NONE:
            return None
        if ring["stop_acknowledged"] != request:
            ring["stop_acknowledged"] = request
        after = ring["stop_after_step"]
        return after if after >= 0 else None

    def leaving(self) -> None:
        """The process ends: say after which step, when that was asked for."""
        after = self.requested()
        if after is not None and self._last_ended >= after:
            self._recorder.ring["stopped_after_step"] = self._last_ended
