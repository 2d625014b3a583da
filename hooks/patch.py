"""Wrappers around functions of torch, put in place and taken out again.

    patches.wrap(owner, "name", before, after)     owner.name -> before, original, after

`before(args, kwargs)` returns a token and `after(token, args, result)` gets it back; after an exception `result` is
`RAISED`. Neither can change arguments, result or exception, and what they raise is counted, not passed on. Functions
bound before the patch (`from torch import save`) are not reached, so patches sit where torch itself looks names up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ranksight.hooks import imports
from ranksight.hooks.recorder import Recorder

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, tuple[Any, ...], Any], None]
RAISED = object()
_SKIPPED = object()


class Patches:
    """All patches of one attachment; `remove` restores what nobody else has replaced meanwhile."""

    def __init__(self, recorder: Recorder, is_compiling: Callable[[], bool]) -> None:
        self._recorder, self._is_compiling = recorder, is_compiling
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, before: Before | None = None, after: After | None = None) -> bool:
        """Wrap a function of a module or class; False, with a note, where this torch has no such function."""
        original = vars(owner).get(name)
        if original is None:
            self._recorder.note(f"this torch has no {owner.__name__}.{name}; what it shows is missing")
            return False
        kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
        wrapped = self._wrapper(original.__func__ if kind else original, f"{owner.__name__}.{name}", before, after)
        self.replace(owner, name, kind(wrapped) if kind else wrapped)
        return True

    def wrap_all(
        self, owners: tuple[Any, ...], name: str, before: Before | None = None, after: After | None = None
    ) -> None:
        """Wrap one function that several modules export, where they still export the same one."""
        original = vars(owners[0]).get(name)
        if self.wrap(owners[0], name, before, after):
            for owner in owners[1:]:
                if vars(owner).get(name) is original:
                    self.replace(owner, name, vars(owners[0])[name])

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until `remove`."""
        original = vars(owner)[name]
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name) is value:
                setattr(owner, name, original)

        self._undo.append(undo)

    def on_remove(self, undo: Callable[[], None]) -> None:
        """Run `undo` at `remove`."""
        self._undo.append(undo)

    def after_import(self, name: str, patch: Callable[[Any], None]) -> None:
        """Run `patch(module)` once the module is there, unless the patches are gone by then."""

        def callback(module: ModuleType) -> None:
            try:
                patch(module)
            except Exception:
                self._recorder.failed(f"patching {name}")

        imports.after_import(name, callback)
        self._undo.append(lambda: imports.forget(callback))

    def remove(self) -> None:
        """Take everything out, the latest first."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception:
                self._recorder.failed("removing a patch")

    def _wrapper(self, original: Any, place: str, before: Before | None, after: After | None) -> Any:
        recorder, is_compiling = self._recorder, self._is_compiling

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not recorder.active:
                return original(*args, **kwargs)
            clock = recorder.clock_ns
            token = None
            if before is not None:
                entered = clock()
                try:
                    token = before(args, kwargs)
                except Exception:
                    token = _SKIPPED
                    recorder.failed(place)
                recorder.cost_ns += clock() - entered
            result = RAISED
            try:
                result = original(*args, **kwargs)
            finally:
                if after is not None and token is not _SKIPPED and recorder.active:
                    left = clock()
                    try:
                        after(token, args, result)
                    except Exception:
                        recorder.failed(place)
                    recorder.cost_ns += clock() - left
            return result

        return wrapper
