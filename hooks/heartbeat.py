"""A thread that stores the time in the header a few times a second: as long as it does, the interpreter runs.

Beside the native tap's heartbeat this tells a held GIL (native beats, Python does not) from a stopped process.
"""

from __future__ import annotations

import threading

from ranksight.hooks.recorder import Recorder

PERIOD_S = 0.2


class Heartbeat:
    """Beats from `start` until `stop`; a daemon thread that touches nothing but the ring."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ranksight-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait at most a second for the thread to end."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def _beat(self) -> None:
        ring, clock_ns = self._recorder.ring, self._recorder.clock_ns
        while True:
            ring["python_heartbeat_ns"] = clock_ns()
            if self._stopped.wait(PERIOD_S):
                return
