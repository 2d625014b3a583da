"""Callbacks after a module was imported, so that nothing is imported for the sake of being watched.

    after_import("torch.distributed.checkpoint", patch)   # now, if it is there already; else once, when it comes

The finder answers for the awaited names only. It asks the other finders for the real spec and lets its loader run the
module first. Standard library alone, and light: the injected `sitecustomize` loads this file in every Python process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _Finder:
    def __init__(self) -> None:
        self.awaited: dict[str, list[Callback]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.awaited:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._watch(name, spec)
                return spec
        return None

    def _watch(self, name: str, spec: ModuleSpec) -> None:
        """Make this one loader run the callbacks; loaders that can't be changed are left alone."""
        loader = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[union-attr]
            run(module)
            callbacks = self.awaited.pop(name, [])
            for callback in callbacks:
                callback(module)

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
        except AttributeError:
            return


_finder = _Finder()


def after_import(name: str, callback: Callback) -> None:
    """Run `callback(module)` once `name` is imported. The callback must not raise: it runs inside an import."""
    module = sys.modules.get(name)
    if module is not None and not _is_being_imported(module):
        callback(module)
        return
    _finder.awaited.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(callback: Callback) -> None:
    """Do not run a callback that is still waiting."""
    for name, callbacks in list(_finder.awaited.items()):
        kept = [waiting for waiting in callbacks if waiting is not callback]
        if kept:
            _finder.awaited[name] = kept
        else:
            del _finder.awaited[name]


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
