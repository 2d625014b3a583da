"""How the process ends, as far as Python gets to see it. Exit code, output and other hooks stay as they were.

    an exception leaves the main thread  -> Life.EXCEPTION, last_error, an EXCEPTION event
    one leaves another thread            -> an EXCEPTION event
    the interpreter shuts down           -> what is still to be written, Life.EXITING, the tap's callbacks drained

Signals are not touched: a killed rank shows in its ring as running, without a process.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder

SETTLE_S = 0.05
TEXT_MOST = 2000


class Exits:
    """Chains into excepthook, threading.excepthook and atexit. `finish` writes what is still to be written."""

    def __init__(self, recorder: Recorder, finish: Callable[[], None]) -> None:
        self._recorder, self._finish = recorder, finish
        self._hook, self._thread_hook = sys.excepthook, threading.excepthook

    def install(self) -> None:
        """Put the hooks in place."""
        sys.excepthook = self._excepthook
        threading.excepthook = self._threading_excepthook
        atexit.register(self._at_exit)

    def remove(self) -> None:
        """Take them out, where nobody has chained onto them meanwhile."""
        if sys.excepthook == self._excepthook:
            sys.excepthook = self._hook
        if threading.excepthook == self._threading_excepthook:
            threading.excepthook = self._thread_hook
        atexit.unregister(self._at_exit)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._recorder.active:
            try:
                self._recorder.ring["life"] = wire.Life.EXCEPTION
                self._say(kind, error)
                self._finish()
            except Exception:
                self._recorder.failed("excepthook")
        self._hook(kind, error, trace)

    def _threading_excepthook(self, args: threading.ExceptHookArgs) -> None:
        if self._recorder.active and args.exc_type is not SystemExit:
            try:
                self._say(args.exc_type, args.exc_value)
            except Exception:
                self._recorder.failed("threading.excepthook")
        self._thread_hook(args)

    def _say(self, kind: type[BaseException], error: BaseException | None) -> None:
        text = f"{kind.__name__}: {error}"[:TEXT_MOST]
        now = self._recorder.clock_ns()
        self._recorder.ring["last_error"] = self._recorder.ring.hooks_table.string(text)
        self._recorder.event(wire.EventKind.EXCEPTION, now, now, name=text)

    def _at_exit(self) -> None:
        if not self._recorder.active:
            return
        try:
            self._finish()
            if self._recorder.ring["life"] != wire.Life.EXCEPTION:
                self._recorder.ring["life"] = wire.Life.EXITING
        except Exception:
            self._recorder.failed("atexit")
        # gloo's threads free their last work with the GIL, and abort the process when they ask for it after this
        # point: let go of it, so that they can come first (https://github.com/pytorch/pytorch/issues/190489).
        time.sleep(SETTLE_S)
