"""The tap in Python, for machines without a compiler: the same kernels, slots and stamps as `native/tap.cpp`.

    every caller -> dispatcher -> kernel at BackendSelect (needs the GIL) -> slot -> the backend's own kernel
                                                                               |
    future callback on a backend thread (needs the GIL): complete_ns  <--------+--------> Work.wait, wait_tensor

It costs tens of microseconds a call where the native tap costs one or two, has no native heartbeat, and does not see
the reduce op: that argument reaches Python as an opaque object. Its fingerprints compare with each other only.

A backend thread that enters Python while the interpreter shuts down ends the process with SIGABRT. So callbacks are
waited for, at most DRAIN_SECONDS, before process groups are destroyed and before the interpreter goes away.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

from ranksight.hooks import traits, wire
from ranksight.hooks.native_tap import foreign_folders, work_class
from ranksight.hooks.python_slots import Group, Groups, SlotWriter
from ranksight.hooks.ring import Ring

DRAIN_SECONDS = 5.0
_REMEMBERED_WAITS = 2048
_REMEMBERED_SITES = 4096
_SLOT = wire.COLLECTIVE
_RETURN, _COMPLETE = _SLOT["return_ns"], _SLOT["complete_ns"]
_WAIT_BEGIN, _WAIT_END = _SLOT["wait_begin_ns"], _SLOT["wait_end_ns"]
_DTYPES = {
    getattr(torch, name): code for code, name in enumerate(wire.DTYPES) if isinstance(getattr(torch, name, None), torch.dtype)
}  # fmt: skip
_now = time.monotonic_ns


class PythonTap:
    """The tap of this process, in place until `remove`."""

    _installed: PythonTap | None = None

    def __init__(self, ring: Ring) -> None:
        if PythonTap._installed is not None:  # a forked child has the parent's
            PythonTap._installed.remove()
        self._ring = ring
        self._writer = SlotWriter(ring)
        self._groups = Groups(ring, _now)
        self._active = True
        self._in_flight: set[int] = set()  # tickets whose callback has not run yet
        self._waited: OrderedDict[int, int] = OrderedDict()  # address of a Work or a storage -> ticket
        self._without_future: set[tuple[int, str]] = set()
        self._sites: dict[tuple[CodeType, int], int] = {}
        skip, keep = foreign_folders(Path(torch.__file__).parent)
        self._skip, self._keep = tuple(skip.splitlines()), tuple(keep.splitlines())
        self._unbox_group = torch._C._distributed_c10d.ProcessGroup.unbox
        self._unbox_work = torch._C._distributed_c10d.Work.unbox
        self.missing_ops: list[str] = []
        self._install()

    # -- in and out

    def _install(self) -> None:
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self._libraries = [torch.library.Library("c10d", "IMPL"), torch.library.Library("_c10d_functional", "IMPL")]
        for code, (name, _) in enumerate(wire.OPS, 1):
            op = getattr(getattr(torch.ops.c10d, name, None), "default", None)
            if op is None:
                self.missing_ops.append(name)
                continue
            kernel = _Kernel(self, code, op, below)
            self._libraries[0].impl(name, kernel.call, "BackendSelect", with_keyset=True)
        redispatch = torch.ops._c10d_functional.wait_tensor.default._handle.redispatch_boxed
        self._libraries[1].impl(
            "wait_tensor",
            lambda keys, tensor: self.wait(_storage_address(tensor), lambda: redispatch(keys & below, tensor)),
            "BackendSelect",
            with_keyset=True,
        )
        self._work = work_class()
        # From the class's own dict: what getattr returns is no method any more and would lose `self`.
        self._raw_wait = self._work.__dict__["wait"]
        original = self._raw_wait.__func__

        @functools.wraps(original)
        def wait(work: Any, *arguments: Any, **named: Any) -> Any:
            return self.wait(_work_address(work), lambda: original(work, *arguments, **named))

        self._work.wait = wait
        self._raw_destroy = dist.destroy_process_group

        @functools.wraps(self._raw_destroy)
        def destroy_process_group(*arguments: Any, **named: Any) -> Any:
            self.drain(DRAIN_SECONDS)
            return self._raw_destroy(*arguments, **named)

        self._destroy = destroy_process_group
        dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy_process_group
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._after_fork_in_child)
        PythonTap._installed = self

    def remove(self) -> None:
        """Take kernels and methods out again; operations in flight still get their times."""
        self._active = False
        PythonTap._installed = None
        for library in self._libraries:
            library._destroy()
        self._work.wait = self._raw_wait
        for module in (dist, dist.distributed_c10d):
            if module.destroy_process_group is self._destroy:
                module.destroy_process_group = self._raw_destroy  # type: ignore[attr-defined]
        atexit.unregister(self._at_exit)

    def drain(self, timeout_s: float) -> bool:
        """Wait until no callback is outstanding; False after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.002)
        return not self._in_flight

    def forget_groups(self, name: str | None) -> None:
        """The next use of group `name` (every group when None) starts a new incarnation."""
        self._groups.forget(name)

    def _at_exit(self) -> None:
        self.remove()
        self.drain(DRAIN_SECONDS)

    def _after_fork_in_child(self) -> None:
        self._active = False
        self._in_flight.clear()

    # -- operations

    def begin(self, op: _Kernel, arguments: tuple[Any, ...], entered: int) -> tuple[int, list[int]]:
        """Write the slot: its ticket (0 when the detail level leaves it out) and the storages that may be waited for."""
        rule = op.traits
        group: Group = self._groups.of(self._unbox_group(arguments[op.group]))
        peer = op.argument(arguments, rule.peer, -1)
        tag = op.argument(arguments, "tag", 0)
        sequence = group.p2p_sequence(rule.p2p, peer, tag) if rule.p2p else next(group.sequence)
        detail = self._ring["detail"]
        if detail == wire.Detail.COUNTERS or (detail == wire.Detail.SAMPLED and sequence % traits.SAMPLE_EVERY):
            self._writer.add("collectives_skipped")
            return 0, []
        tensors = list(_tensors(op.argument(arguments, rule.payload, ())))
        dtype = _DTYPES.get(tensors[0].dtype, wire.NONE_BYTE) if tensors else wire.NONE_BYTE
        shape = tuple(tensors[0].shape) if tensors else ()
        numel, size = sum(tensor.numel() for tensor in tensors), sum(map(_bytes, tensors))
        waits = []
        flags = 0
        if op.argument(arguments, "async_op", False):
            flags = int(wire.CollectiveFlag.ASYNC)
            waits = [_storage_address(tensor) for tensor in _tensors(op.argument(arguments, rule.written, ()))]
        send, receive = (_splits(op.argument(arguments, name, ())) for name in rule.splits or ("", ""))
        print_ = traits.fingerprint(op.code, wire.NONE_BYTE, peer, dtype, numel) if rule.agrees else 0
        ring = self._ring
        body = [
            entered, 0, 0, 0, 0, sequence, size * (group.size if rule.times_size else 1), print_, ring["step"],
            group.number, self._call_site(), threading.get_native_id(), peer, tag, ring["microbatch"], op.code,
            wire.NONE_BYTE, dtype, ring["phase"], flags, 0, 0, 0, 0, ring["stage"] + 1, numel,
        ]  # fmt: skip
        return self._writer.open(body, shape, send, receive), waits

    def end(self, op: _Kernel, ticket: int, result: Any, waits: list[int], on_cpu: bool, returned: int) -> None:
        """The call came back: stamp it and watch for its completion.

        Not on a device: there the future and the wait are over when the work is queued, not when it is done.
        """
        self._writer.stamp(ticket, _RETURN, returned)
        if op.work is None:  # monitored_barrier: it blocks in the call
            self._writer.stamp(ticket, _COMPLETE, returned)
            return
        boxed = result if op.work < 0 else result[op.work]
        work = self._unbox_work(boxed) if boxed is not None else None
        if work is None:
            self._writer.change_flags(ticket, wire.CollectiveFlag.NO_COMPLETION)
            return
        for address in (_work_address(work), *waits):
            self._waited[address] = ticket if on_cpu else -ticket
            self._waited.move_to_end(address)
        while len(self._waited) > _REMEMBERED_WAITS:
            self._waited.popitem(last=False)
        if not on_cpu or not self._watch(op, ticket, work):
            self._writer.change_flags(ticket, wire.CollectiveFlag.NO_COMPLETION)

    def _watch(self, op: _Kernel, ticket: int, work: Any) -> bool:
        kind = (op.code, type(work).__name__)
        if kind in self._without_future:
            return False
        try:
            future = work.get_future()
        except RuntimeError:
            self._without_future.add(kind)
            return False

        def completed(done: Any) -> None:
            ns = _now()
            try:
                if not self._writer.stamp(ticket, _COMPLETE, ns):
                    self._writer.add("late_completions")
                done.value()
            except Exception:
                self._writer.change_flags(ticket, wire.CollectiveFlag.FAILED)
            finally:
                self._in_flight.discard(ticket)

        self._in_flight.add(ticket)
        future.add_done_callback(completed)
        return True

    def failed(self, ticket: int) -> None:
        """The call raised."""
        self._writer.stamp(ticket, _RETURN, _now())
        self._writer.change_flags(ticket, wire.CollectiveFlag.FAILED)

    def wait(self, address: int, body: Callable[[], Any]) -> Any:
        """Run `body`, the wait for what lives at `address`, between two stamps."""
        ticket = self._waited.pop(address, 0) if self._active else 0
        if not ticket:
            return body()
        # On a device the wait ends when the work is queued, which says nothing about its completion.
        bounds, ticket = ticket > 0, abs(ticket)
        if self._writer.owns(ticket) and not self._writer.time_of(ticket, _WAIT_BEGIN):
            self._writer.stamp(ticket, _WAIT_BEGIN, _now())
        try:
            result = body()
        except BaseException:
            self._writer.stamp(ticket, _WAIT_END, _now())
            self._writer.change_flags(ticket, wire.CollectiveFlag.FAILED)
            raise
        ended = _now()
        flags = wire.CollectiveFlag
        stamped = self._writer.stamp(ticket, _WAIT_END, ended)
        if bounds and stamped and self._writer.flags(ticket) & flags.NO_COMPLETION:
            self._writer.stamp(ticket, _COMPLETE, ended)
            self._writer.change_flags(ticket, flags.UPPER_BOUND, clear=flags.NO_COMPLETION)
        return result

    def cost(self, ns: int) -> None:
        """Add to the time spent in the tap."""
        self._writer.add("tap_cost_ns", ns)

    def error(self) -> None:
        """Count an error of the tap itself."""
        self._writer.add("tap_errors")

    @property
    def active(self) -> bool:
        """Whether operations are recorded: not after `remove`, not in a forked child."""
        return self._active

    def _call_site(self) -> int:
        frame = sys._getframe(3)
        while frame is not None:
            code = frame.f_code
            name = code.co_filename
            if not name.startswith(self._skip) or self._is_kept(name):
                key = (code, frame.f_lasti)
                number = self._sites.get(key)
                if number is None:
                    text = f"{name}:{frame.f_lineno} {code.co_qualname}"
                    if len(self._sites) >= _REMEMBERED_SITES:
                        self._sites.clear()
                    number = self._sites[key] = self._ring.tap_table.string(text)
                return number
            frame = frame.f_back  # type: ignore[assignment]
        return 0

    def _is_kept(self, name: str) -> bool:
        prefixes = [prefix for prefix in self._skip if name.startswith(prefix)]
        return all(name[len(prefix) :].startswith(self._keep) for prefix in prefixes)


class _Kernel:
    """One op: where its arguments are in the schema of the running torch, and the kernel itself."""

    def __init__(self, tap: PythonTap, code: int, op: Any, below: Any) -> None:
        self.code, self._tap, self._below = code, tap, below
        self.traits = traits.TRAITS[wire.OPS[code - 1][0]]
        self._redispatch = op._handle.redispatch_boxed
        schema = op._schema
        self._at = {argument.name: number for number, argument in enumerate(schema.arguments)}
        self._default = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        self.group = self._at["process_group"]
        self._device = self.traits.payload or "tensor"
        works = [number for number, value in enumerate(schema.returns) if str(value.type).endswith("c10d.Work")]
        self.work: int | None = None if not works else (works[0] if len(schema.returns) > 1 else -1)

    def argument(self, arguments: tuple[Any, ...], name: str, missing: Any) -> Any:
        """Value of an argument; trailing defaults are not passed to Python kernels."""
        at = self._at.get(name)
        if at is None:
            return missing
        return arguments[at] if at < len(arguments) else self._default[name]

    def call(self, keys: Any, *arguments: Any, **named: Any) -> Any:
        """The kernel: record, redispatch, record."""
        tap, below = self._tap, keys & self._below
        device, imaginary = self._place(arguments) if tap.active else ("", True)
        if imaginary:
            return self._redispatch(below, *arguments, **named)
        entered = _now()
        ticket = 0
        waits: list[int] = []
        try:
            ticket, waits = tap.begin(self, arguments, entered)
        except Exception:
            tap.error()
        called = _now()
        try:
            result = self._redispatch(below, *arguments, **named)
        except BaseException:
            if ticket:
                tap.failed(ticket)
            raise
        returned = _now()
        if ticket:
            try:
                tap.end(self, ticket, result, waits, device == "cpu", returned)
            except Exception:
                tap.error()
        tap.cost(_now() - returned + called - entered)
        return result

    def _place(self, arguments: tuple[Any, ...]) -> tuple[str, bool]:
        """Device of the tensors, and whether they only stand for real ones (tracing, compilation)."""
        for tensor in _tensors(self.argument(arguments, self._device, ())):
            keys = torch._C._dispatch_keys(tensor)
            return tensor.device.type, bool(tensor.is_meta or keys.has(torch._C.DispatchKey.Python))
        return "cpu", False


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def _bytes(tensor: torch.Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        values, indices = tensor._values(), tensor._indices()
        return int(values.nbytes + indices.nbytes)
    return int(tensor.nbytes) if tensor.layout == torch.strided else 0


def _splits(value: Any) -> list[int]:
    return [(v.shape[0] if v.dim() else 1) if isinstance(v, torch.Tensor) else int(v) for v in value]


def _storage_address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0


def _work_address(work: Any) -> int:
    """Address of the C++ object: the first word after the head of a pybind11 instance. Only ever compared."""
    return ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value or 0
