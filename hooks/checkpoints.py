"""Checkpoints being written and read, and compilation: what stops a rank for long without being a hang.

    torch.save, distributed.checkpoint.save  -> Phase.CHECKPOINT, a CHECKPOINT span (name: path) [step, bytes if known]
    distributed.checkpoint.async_save        -> Phase.CHECKPOINT while it blocks; the span ends with its future
    torch.load, distributed.checkpoint.load  -> Phase.LOAD
    torch.compile at work                    -> Phase.COMPILE

A thread that writes in the background has a span, but does not change the phase of the rank.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ranksight.hooks import wire
from ranksight.hooks.patch import RAISED, Patches
from ranksight.hooks.phases import Phases
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.wire import Phase

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Checkpoints:
    """Watches the functions that write and read checkpoints, and the compiler."""

    def __init__(self, recorder: Recorder, phases: Phases) -> None:
        self._recorder, self._phases = recorder, phases
        self._compiling: list[int] = []

    def install(self, patches: Patches) -> None:
        """Put the hooks in place; those on modules that are not imported yet wait for them."""

        def distributed(package: Any) -> None:
            from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

            patches.wrap_all((state_dict_saver, package), "save", self._distributed_begins, self._save_ends)
            patches.wrap_all((state_dict_saver, package), "async_save", self._distributed_begins, self._async_save_ends)
            patches.wrap_all((state_dict_loader, package), "load", self._load_begins, self._load_ends)

        def compiler(module: Any) -> None:
            handler = module.callback_handler
            handler.register_start_callback(self._compile_begins)
            handler.register_end_callback(self._compile_ends)
            patches.on_remove(lambda: handler.remove_start_callback(self._compile_begins))
            patches.on_remove(lambda: handler.remove_end_callback(self._compile_ends))

        serialization: Any = torch.serialization
        patches.wrap_all((serialization, torch), "save", self._save_begins, self._save_ends)
        patches.wrap_all((serialization, torch), "load", self._load_begins, self._load_ends)
        patches.after_import("torch.distributed.checkpoint", distributed)
        patches.after_import("torch._dynamo.callback", compiler)

    def _save_begins(self, args: Args, kwargs: Kwargs) -> tuple[int, int | None, str, int]:
        target = args[1] if len(args) > 1 else kwargs.get("f")
        return self._span_begins(target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", ""))

    def _distributed_begins(self, _args: Args, kwargs: Kwargs) -> tuple[int, int | None, str, int]:
        writer = kwargs.get("storage_writer")
        return self._span_begins(kwargs.get("checkpoint_id") or getattr(writer, "path", ""))

    def _span_begins(self, target: Any) -> tuple[int, int | None, str, int]:
        path = os.fspath(target) if isinstance(target, (str, os.PathLike)) else ""
        path = path if isinstance(path, str) else ""
        now, step = self._recorder.clock_ns(), self._recorder.step
        return now, self._push(Phase.CHECKPOINT, now), path, step

    def _save_ends(self, token: tuple[int, int | None, str, int], _args: Args, result: object) -> None:
        begin, depth, path, step = token
        now = self._recorder.clock_ns()
        self._pop(depth, now)
        if result is not RAISED:
            self._written(begin, now, path, step)

    def _async_save_ends(self, token: tuple[int, int | None, str, int], _args: Args, result: Any) -> None:
        begin, depth, path, step = token
        self._pop(depth, self._recorder.clock_ns())
        future = getattr(result, "upload_completion", result)
        if result is RAISED or not hasattr(future, "add_done_callback"):
            return

        def done(finished: Any) -> None:
            try:
                if self._recorder.active and not finished.cancelled() and finished.exception() is None:
                    self._written(begin, self._recorder.clock_ns(), path, step)
            except Exception:
                self._recorder.failed("asynchronous checkpoint")

        future.add_done_callback(done)

    def _written(self, begin: int, now: int, path: str, step: int) -> None:
        size = (float(os.path.getsize(path)),) if path and os.path.isfile(path) else ()  # noqa: PTH113, PTH202
        self._recorder.event(
            wire.EventKind.CHECKPOINT, begin, now, step=step, name=path, values=(float(step), *size)
        )

    def _load_begins(self, _args: Args, _kwargs: Kwargs) -> int | None:
        return self._push(Phase.LOAD, self._recorder.clock_ns())

    def _load_ends(self, depth: int | None, _args: Args, _result: object) -> None:
        self._pop(depth, self._recorder.clock_ns())

    def _compile_begins(self, _: object) -> None:
        if self._recorder.active:
            depth = self._push(Phase.COMPILE, self._recorder.clock_ns())
            if depth is not None:
                self._compiling.append(depth)

    def _compile_ends(self, _: object) -> None:
        if self._recorder.active and self._compiling and self._recorder.on_training_thread():
            self._pop(self._compiling.pop(), self._recorder.clock_ns())

    def _push(self, phase: Phase, now: int) -> int | None:
        """Samples read with torch.load are data, and other threads have no phase."""
        if not self._recorder.on_training_thread() or self._phases.in_force is Phase.DATA:
            return None
        return self._phases.push(phase, now)

    def _pop(self, depth: int | None, now: int) -> None:
        if depth is not None:
            self._phases.pop(depth, now)
