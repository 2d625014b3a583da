"""The tap on collectives: native where it can be, written in Python where not, none rather than an exception.

    tap = install(ring)            # ring["tap"] and a NOTE event say which one, and why not the one that was asked for
    tap.forget_groups("3")         # a process group was destroyed
    tap.set_detail(Detail.SAMPLED)
    tap.drain(5.0); tap.remove()   # before the interpreter goes away

What the taps write: `wire.COLLECTIVE` slots. An operation without a future carries NO_COMPLETION from its return on;
a wait for it turns that into UPPER_BOUND. SAMPLED keeps the operations whose sequence number is a multiple of
`traits.SAMPLE_EVERY`, on every rank the same ones; sequence numbers go on in every detail level.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ranksight.hooks import wire
from ranksight.hooks.ring import Ring


class _Tap(Protocol):
    def remove(self) -> None: ...
    def drain(self, timeout_s: float) -> bool: ...
    def forget_groups(self, name: str | None) -> None: ...


class TapHandle:
    """The tap that is in place; its methods never raise."""

    def __init__(self, ring: Ring, kind: wire.Tap, tap: _Tap | None, reasons: tuple[str, ...]) -> None:
        self.kind = kind
        self.reasons = reasons
        self._ring, self._tap = ring, tap

    def remove(self) -> None:
        """Take the tap out; a second call does nothing."""
        tap, self._tap = self._tap, None
        if tap is not None:
            self._guarded(tap.remove)

    def drain(self, timeout_s: float) -> bool:
        """Wait until no callback of the tap needs the interpreter; False after `timeout_s` seconds."""
        tap = self._tap
        if tap is None:
            return True
        try:
            return tap.drain(timeout_s)
        except Exception:
            self._ring["tap_errors"] += 1
            return False

    def forget_groups(self, name: str | None) -> None:
        """Process group `name` (all of them when None) is gone: its next use is a new incarnation, sequence from 0."""
        tap = self._tap
        if tap is not None:
            self._guarded(lambda: tap.forget_groups(name))

    def set_detail(self, detail: wire.Detail) -> None:
        """How much the tap records from now on."""
        self._ring["detail"] = detail

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception:
            self._ring["tap_errors"] += 1


def install(ring: Ring, prefer: str = "native") -> TapHandle:
    """Put the best tap in place: `prefer` is "native", "python" or "none". Never raises."""
    reasons: list[str] = []
    kind = wire.Tap.NONE
    tap: _Tap | None = None
    if prefer not in {"native", "python", "none"}:
        reasons.append(f"no tap is called {prefer!r}: native, python and none are")
        prefer = "native"
    if prefer == "native":
        try:
            from ranksight.hooks.native_tap import NativeTap

            native = NativeTap(ring.path)
            kind, tap = wire.Tap.NATIVE, native
            reasons += _about_missing(native.missing_ops)
        except Exception as error:
            reasons.append(f"no native tap: {error}")
            prefer = "python"
    if prefer == "python":
        try:
            from ranksight.hooks.python_tap import PythonTap

            python = PythonTap(ring)
            kind, tap = wire.Tap.PYTHON, python
            reasons += _about_missing(python.missing_ops)
        except Exception as error:
            reasons.append(f"no Python tap: {error}")
    ring["tap"] = kind
    for reason in reasons:
        now = time.monotonic_ns()
        ring.events.write(wire.EventKind.NOTE, now, now, name=ring.hooks_table.string(reason))
    return TapHandle(ring, kind, tap, tuple(reasons))


def _about_missing(ops: list[str]) -> list[str]:
    return [f"this torch has no {' '.join(ops)}; nothing is recorded for them"] if ops else []
