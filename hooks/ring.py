"""The file that a rank shares with the agent: made, mapped and written here, read by `ranksight.agent.reading.reader`.

    create(directory) -> Ring        reserve the space, write the header, rename into place
    ring["step"] = 7                 one aligned store into the header
    ring.events.write(...)           a record into the events ring
    ring.hooks_table.append(...)     text and groups that records refer to by number

The space is reserved with posix_fallocate before it is mapped: a tmpfs that fills up later must not kill training
with SIGBUS. The file appears under its final name only when its header is whole. Nothing here imports torch.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ranksight.hooks import wire

SUFFIX = ".ring"
ENV_RING_DIR = "RANKSIGHT_RING_DIR"
ENV_RUN_ID = "RANKSIGHT_RUN_ID"


class Sizes(NamedTuple):
    """Capacities of one ring file; the defaults take 8 MiB and hold about 12,000 collectives and 24,000 events."""

    collectives: int = 16384
    events: int = 24576
    tap_table: int = 1 << 19
    hooks_table: int = 1 << 19

    @property
    def total(self) -> int:
        """Bytes of the whole file."""
        return (
            wire.HEADER_BYTES
            + self.collectives * wire.COLLECTIVE.size
            + self.events * wire.EVENT.size
            + self.tap_table
            + self.hooks_table
        )


def default_directory(run_id: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the rings of a run live: RANKSIGHT_RING_DIR, else a folder of this user and run on tmpfs."""
    if environ.get(ENV_RING_DIR):
        return Path(environ[ENV_RING_DIR])
    shm = Path("/dev/shm")
    base = shm if shm.is_dir() else Path("/tmp")
    run = run_id or environ.get(ENV_RUN_ID) or environ.get("TORCHELASTIC_RUN_ID") or environ.get("SLURM_JOB_ID") or "default"
    return base / f"ranksight-{os.getuid()}" / run.replace("/", "_")


def fallback_directory(directory: Path) -> Path:
    """Where a rank puts its ring when `directory` has no room or can't be made; the agent looks there, too."""
    return Path(tempfile.gettempdir()) / f"ranksight-{os.getuid()}" / directory.name


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int:
    """Start time of a process in clock ticks since boot (field 22 of stat); OSError when there is none."""
    stat = (proc / str(pid) / "stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


class Table:
    """An append-only table with one writing process; see the module docstring of `wire`."""

    def __init__(self, buffer: mmap.mmap, offset: int, size: int, used: wire.Field) -> None:
        self._buffer, self._offset, self._size, self._used = buffer, offset, size, used
        self._numbers: dict[int, int] = {}
        self._strings: dict[str, int] = {}
        self._lock = threading.Lock()

    def append(self, kind: wire.TableKind, payload: bytes) -> int:
        """Add an entry and return its number within its kind, or 0 when the table is full (see `Events.write`, too)."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return 0
        try:
            begin: int = self._used.packer.unpack_from(self._buffer, self._used.offset)[0]
            end = begin + wire.TABLE_ENTRY.size + (len(payload) + 7) // 8 * 8
            if end > self._size:
                return 0
            at = self._offset + begin
            wire.TABLE_ENTRY.pack_into(self._buffer, at, len(payload), kind, 0)
            self._buffer[at + wire.TABLE_ENTRY.size : at + wire.TABLE_ENTRY.size + len(payload)] = payload
            self._used.packer.pack_into(self._buffer, self._used.offset, end)
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            return self._numbers[kind]
        finally:
            self._lock.release()

    def string(self, text: str) -> int:
        """Number of `text`, added at its first use; 0 for an empty text or a full table."""
        number = self._strings.get(text)
        if number is None:
            number = self.append(wire.TableKind.STRING, text.encode("utf-8", "replace")[:4096]) if text else 0
            self._strings[text] = number
        return number

    def group_made(self, made_ns: int, ranks: list[int], name: str, axis: str) -> int:
        """Add the global ranks and the axis of a process group."""
        packed = b"".join(rank.to_bytes(4, "little", signed=True) for rank in ranks)
        text = f"{name}\0{axis}".encode()
        return self.append(wire.TableKind.GROUP_MADE, wire.GROUP_MADE.pack(made_ns, len(ranks)) + packed + text)


_HEAD_AND_COUNT, _HEAD_AT = struct.Struct("<QQ"), wire.HEADER["events_head"].offset  # two neighbours, one call
_STEP_AND_BEGIN, _STEP_AT = struct.Struct("<qq"), wire.HEADER["step"].offset
_PHASE_AND_BEGIN, _PHASE_AT = struct.Struct("<Iq"), wire.HEADER["phase"].offset
_NO_VALUES = [(0.0,) * n for n in range(9)]
_LOCK_S = 1.0  # held for microseconds; only a signal handler that came in while its own thread held it waits that long
_U64, _I64 = wire.EVENT["ticket"].packer, wire.EVENT["end_ns"].packer
_EVENT_SIZE = wire.EVENT.size
_EVENT_BODY = struct.Struct("<qqqHHIiiiIHHI8d")  # EVENT from begin_ns on


class Events:
    """Writer of the events ring. Several threads of one process may write."""

    def __init__(self, buffer: mmap.mmap, offset: int, slots: int) -> None:
        self._buffer, self._offset, self._slots = buffer, offset, slots
        self._head = self._count = 0
        self._lock = threading.Lock()
        self._thread = threading.local()  # .id: what get_native_id said; asking is a system call

    def write(
        self,
        kind: wire.EventKind,
        begin_ns: int,
        end_ns: int,
        *,
        step: int = -1,
        code: int = 0,
        name: int = 0,
        microbatch: int = -1,
        stage: int = -1,
        layer: int = -1,
        flags: int = 0,
        values: tuple[float, ...] = (),
    ) -> int:
        """Write one event; the returned ticket lets `close` set the end of an open span (end_ns 0) later.

        Returns 0 when the event is lost: a signal handler has interrupted its own thread right here.
        """
        inline, extra = values, 0
        rest: tuple[float, ...] = ()
        if len(values) > 8:
            inline, rest = values[:8], values[8 : 8 + wire.EVENT_EXTRA_VALUES * 1024]
            extra = -(-len(rest) // wire.EVENT_EXTRA_VALUES)
        try:
            thread = self._thread.id
        except AttributeError:
            thread = self._thread.id = threading.get_native_id()
        buffer, lock = self._buffer, self._lock
        if not (lock.acquire(False) or lock.acquire(timeout=_LOCK_S)):
            return 0
        try:
            index = self._head
            self._head = head = index + 1 + extra
            self._count += 1
            _HEAD_AND_COUNT.pack_into(buffer, _HEAD_AT, head, self._count)
            at = self._offset + index % self._slots * _EVENT_SIZE
            _U64.pack_into(buffer, at, 0)
            _EVENT_BODY.pack_into(
                buffer, at + 8, begin_ns, end_ns, step, kind, code, name, microbatch, stage, layer,
                thread, len(inline) + len(rest), extra, flags, *inline, *_NO_VALUES[8 - len(inline)],
            )  # fmt: skip
            for number in range(extra):
                chunk = rest[number * wire.EVENT_EXTRA_VALUES : (number + 1) * wire.EVENT_EXTRA_VALUES]
                slot = self._at(index + 1 + number)
                _U64.pack_into(buffer, slot, 0)
                _PACK_DOUBLES[len(chunk)].pack_into(buffer, slot + 8, *chunk)
                _U64.pack_into(buffer, slot, index + 2 + number)
            _U64.pack_into(buffer, at, index + 1)
        finally:
            lock.release()
        return index + 1

    def close(self, ticket: int, end_ns: int) -> bool:
        """Set the end of an open span; False when its slot was overwritten meanwhile."""
        at = self._at(ticket - 1)
        if not self._lock.acquire(timeout=_LOCK_S):
            return False
        try:
            if _U64.unpack_from(self._buffer, at)[0] != ticket:
                return False
            _I64.pack_into(self._buffer, at + wire.EVENT["end_ns"].offset, end_ns)
        finally:
            self._lock.release()
        return True

    def _at(self, index: int) -> int:
        return self._offset + index % self._slots * wire.EVENT.size


_PACK_DOUBLES = [struct.Struct(f"<{n}d") for n in range(wire.EVENT_EXTRA_VALUES + 1)]


class Ring:
    """A mapped ring file. `ring[name]` reads and stores header fields by their name in `wire.HEADER`."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path, self.buffer = path, buffer
        self._fields = {field.name: (field.packer, field.offset) for field in wire.HEADER.fields}
        self.events = Events(buffer, self["events_offset"], self["events_slots"])
        self.hooks_table = Table(
            buffer, self["hooks_table_offset"], self["hooks_table_bytes"], wire.HEADER["hooks_table_used"]
        )
        self.tap_table = Table(buffer, self["tap_table_offset"], self["tap_table_bytes"], wire.HEADER["tap_table_used"])

    def __getitem__(self, name: str) -> int:
        packer, offset = self._fields[name]
        value: int = packer.unpack_from(self.buffer, offset)[0]
        return value

    def __setitem__(self, name: str, value: int) -> None:
        packer, offset = self._fields[name]
        packer.pack_into(self.buffer, offset, value)

    def enter_step(self, step: int, now_ns: int) -> None:
        """Store `step` and `step_begin_ns`."""
        _STEP_AND_BEGIN.pack_into(self.buffer, _STEP_AT, step, now_ns)

    def enter_phase(self, phase: int, now_ns: int) -> None:
        """Store `phase` and `phase_begin_ns`."""
        _PHASE_AND_BEGIN.pack_into(self.buffer, _PHASE_AT, phase, now_ns)


def create(directory: Path, sizes: Sizes = Sizes(), generation: int = 0) -> Ring:
    """Make the ring file of this process in `directory` (made 0700 when missing).

    Raises OSError when the folder can't be made or the file system has no room for `sizes.total` bytes.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    pid, ticks = os.getpid(), start_ticks(os.getpid())
    path = directory / f"{pid}-{ticks}{SUFFIX}"
    draft = path.with_suffix(".tmp")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, sizes.total)
        # Populated: a first touch of each page would be a fault on the thread that trains.
        buffer = mmap.mmap(fd, sizes.total, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    offset = wire.HEADER_BYTES
    sections: dict[str, int] = {}
    for name, slots, size in (
        ("collectives", sizes.collectives, wire.COLLECTIVE.size),
        ("events", sizes.events, wire.EVENT.size),
    ):
        sections[f"{name}_offset"], sections[f"{name}_slots"] = offset, slots
        offset += slots * size
    for name, size in (("tap_table", sizes.tap_table), ("hooks_table", sizes.hooks_table)):
        sections[f"{name}_offset"], sections[f"{name}_bytes"] = offset, size
        offset += size
    identity = {
        "version": wire.VERSION, "pid": pid, "start_ticks": ticks, "rank": -1, "world_size": -1, "local_rank": -1,
        "generation": generation, "created_monotonic_ns": time.monotonic_ns(), "created_wall_ns": time.time_ns(),
        "detail": wire.Detail.FULL, "step": -1, "microbatch": -1, "stage": -1, "phase": wire.Phase.STARTUP,
        "phase_begin_ns": time.monotonic_ns(), "stop_after_step": -1, "stopped_after_step": -1,
    }  # fmt: skip
    for name, value in (sections | identity).items():
        field = wire.HEADER[name]
        field.packer.pack_into(buffer, field.offset, value)
    buffer[: len(wire.MAGIC)] = wire.MAGIC
    draft.replace(path)
    return Ring(path, buffer)
