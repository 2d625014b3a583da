"""A ring file as the agent sees it: identity, new records in batches, open records, groups and strings.

    RingReader(path).poll() -> Batch(settled collectives, events, ended spans)
                    .open_rows      collectives still in flight or still waited for
                    .record(row)    one row as a `records.Collective`

A collective is handed over once, when it is *settled*: complete, and either no one can wait for it any more or the
wait has ended. An asynchronous operation whose wait nobody saw is settled `WAIT_GRACE_NS` after its completion: waits
of C++ callers leave no trace. One that nothing but a wait could see complete (NO_COMPLETION) is given up
`WAIT_PATIENCE_NS` after its call. What is not settled stays in `open_rows` and is looked at again with every poll.

The writer reserves slots (`*_head`) before it counts records (`*_count`). The reader loads the count first, so at any
moment `captured + dropped <= count`, with equality as soon as the writer rests.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.reading.slots import COLLECTIVE, EVENT, HEADER, Mask, Rows, SlotReader, pick, stack
from ranksight.agent.reading.tables import Table, resolve
from ranksight.hooks import wire
from ranksight.hooks.records import Collective, Event, Group, RankIdentity
from ranksight.hooks.ring import start_ticks

WAIT_GRACE_NS = 1_000_000_000
WAIT_PATIENCE_NS = 60_000_000_000
CLOCK_MARGIN_NS = 3_600_000_000_000  # records are younger than the clock reading that a poll begins with
SPANS = (
    wire.EventKind.STEP,
    wire.EventKind.PHASE,
    wire.EventKind.GC,
    wire.EventKind.PIPELINE,
    wire.EventKind.CHECKPOINT,
    wire.EventKind.DATA,
)
_FIELDS = {field.name: (field.packer.unpack_from, field.offset) for field in wire.HEADER.fields if field.count == 1}
_NUM_OPS, _NUM_KINDS = len(wire.OPS), len(wire.EventKind)
_ASYNC, _FAILED = int(wire.CollectiveFlag.ASYNC), int(wire.CollectiveFlag.FAILED)
_NO_COMPLETION = int(wire.CollectiveFlag.NO_COMPLETION)
_NONE = np.ones(0, bool)
_IS_SPAN = np.zeros(1 << 16, bool)
_IS_SPAN[list(SPANS)] = True
_TAPS: dict[int, str] = {tap: tap.name.lower() for tap in wire.Tap}
_PHASES: dict[int, str] = {phase: phase.name.lower() for phase in wire.Phase}
_KINDS: dict[int, str] = {kind: kind.name.lower() for kind in wire.EventKind}


class RingError(Exception):
    """A file that is not a ring this version can read; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one poll of one ring found: settled collectives and ended events, as rows of the wire layouts."""

    collectives: Rows
    events: Rows
    event_extras: dict[int, NDArray[Any]]
    collective_extras: dict[int, NDArray[Any]] = field(default_factory=dict)  # splits beyond the values of the slot


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of one section: written by the rank, captured here, dropped (overwritten before they were read)."""

    written: int
    captured: int
    dropped: int


def process_state(pid: int, ticks: int, proc: Path = Path("/proc")) -> str | None:
    """State letter of a process (R, S, D, T, ...); None when it is gone, a zombie, or its pid belongs to another."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
        if start_ticks(pid, proc) != ticks:
            return None
    except (OSError, IndexError, ValueError):
        return None
    state = stat.rpartition(")")[2].split()[0]
    return None if state in "ZX" else state


class RingReader:
    """Read-only view of one ring file. Raises RingError when it is foreign, truncated or of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map(path)
        buffer = memoryview(self._map)
        self._header: memoryview | bytes = buffer[: wire.HEADER_BYTES]
        _check(path, np.frombuffer(buffer, HEADER, 1)[0], len(buffer))
        self.collectives = SlotReader(self._section(buffer, "collectives", COLLECTIVE), self._is_collective, "<i8")
        self.events = SlotReader(self._section(buffer, "events", EVENT), self._is_event, "<f8")
        self.tap_table = Table(buffer, self["tap_table_offset"], self["tap_table_bytes"])
        self.hooks_table = Table(buffer, self["hooks_table_offset"], self["hooks_table_bytes"])
        self.groups: list[Group] = []  # by group number - 1
        self.group_ranks: list[int] = []  # own rank within each
        self.groups_changed = False  # set here, taken back by whoever took note
        self.open_rows: Rows = np.empty(0, COLLECTIVE)
        self._open_splits: dict[int, NDArray[Any]] = {}
        self._open_events: Rows = np.empty(0, EVENT)
        self._open_extras: dict[int, NDArray[Any]] = {}
        self._groups_for = (0, 0, 0)
        self._dropped = {"collectives": 0, "events": 0}
        self._latest_ns = 0

    def __getitem__(self, name: str) -> int:
        """A header field by its name in `wire.HEADER`."""
        unpack_from, offset = _FIELDS[name]
        return unpack_from(self._header, offset)[0]  # type: ignore[no-any-return]

    @property
    def identity(self) -> RankIdentity:
        """Who writes this ring, as far as the rank knows by now."""
        return RankIdentity(
            self["pid"], self["start_ticks"], self["rank"], self["world_size"], self["local_rank"], self["generation"],
            _TAPS.get(self["tap"], "none"),
        )  # fmt: skip

    def poll(self, now_ns: int, final: bool = False) -> Batch:
        """Read what is new. `final`: the writer is dead, so what it left half written is given up and counted."""
        self._latest_ns = now_ns + CLOCK_MARGIN_NS
        written = {name: self[f"{name}_count"] for name in ("collectives", "events")}
        heads = {name: self[f"{name}_head"] for name in ("collectives", "events")}
        new = self.collectives.read(heads["collectives"], final)
        events = self.events.read(heads["events"], final)
        self._poll_tables()
        for name, reader in (("collectives", self.collectives), ("events", self.events)):
            if reader.lost_slots:
                missing = written[name] - reader.captured - (0 if final else reader.unpublished)
                self._dropped[name] = max(self._dropped[name], missing)
        settled, splits = self._settle_collectives(new, now_ns, final)
        return Batch(settled, *self._settle_events(events, final), splits)

    @property
    def backlog(self) -> float:
        """Share of its fuller ring that is not read yet."""
        return max(self.collectives.backlog(self["collectives_head"]), self.events.backlog(self["events_head"]))

    def counts(self, section: str = "collectives") -> Counts:
        """Records written, captured and dropped so far in "collectives" or "events"."""
        captured = (self.collectives if section == "collectives" else self.events).captured
        dropped = self._dropped[section]
        return Counts(max(self[f"{section}_count"], captured + dropped), captured, dropped)

    def release(self) -> None:
        """Let go of the file after its last poll; header, counts, strings, groups and open rows stay readable."""
        self._header = bytes(self._header)
        self.collectives.release()
        self.events.release()
        self.tap_table.release()
        self.hooks_table.release()

    def record(self, row: np.void) -> Collective:
        """One row as a record. Splits beyond the sixteen values of the slot itself are left out."""
        group = self.groups[int(row["group"]) - 1]
        values = row["values"].tolist()
        n_dims, n_send, n_recv = int(row["n_dims"]), int(row["n_send"]), int(row["n_recv"])
        dtype, reduce_op = int(row["dtype"]), int(row["reduce_op"])
        return Collective(
            rank=self["rank"],
            ticket=int(row["ticket"]),
            op=wire.OP_NAMES.get(int(row["op"]), f"op{int(row['op'])}"),
            group=group,
            group_seq=int(row["group_seq"]),
            enqueue_ns=int(row["enqueue_ns"]),
            return_ns=int(row["return_ns"]) or None,
            wait_begin_ns=int(row["wait_begin_ns"]) or None,
            wait_end_ns=int(row["wait_end_ns"]) or None,
            complete_ns=int(row["complete_ns"]) or None,
            bytes=int(row["bytes"]),
            numel=int(row["numel"]),
            dtype=wire.DTYPES[dtype] if dtype < len(wire.DTYPES) else None,
            reduce_op=wire.REDUCE_OPS[reduce_op] if reduce_op < len(wire.REDUCE_OPS) else None,
            peer=int(row["peer"]),
            tag=int(row["tag"]),
            fingerprint=int(row["fingerprint"]),
            call_site=self.tap_table.string(int(row["call_site"])),
            step=int(row["step"]),
            microbatch=int(row["microbatch"]),
            stage=int(row["stage"]) - 1,
            phase=phase_name(int(row["phase"])),
            thread=int(row["thread"]),
            flags=int(row["flags"]),
            shape=tuple(values[:n_dims]),
            send_splits=tuple(values[n_dims : n_dims + n_send]),
            recv_splits=tuple(values[n_dims + n_send : n_dims + n_send + n_recv]),
        )

    def event(self, row: np.void, extras: dict[int, NDArray[Any]]) -> Event:
        """One event row as a record, with the values of its continuation slots."""
        count = int(row["n_values"])
        values = [*row["values"].tolist(), *extras.get(int(row["ticket"]), ())][:count]
        kind = int(row["kind"])
        return Event(
            rank=self["rank"],
            kind=_KINDS[kind],
            begin_ns=int(row["begin_ns"]),
            end_ns=int(row["end_ns"]) or None,
            step=int(row["step"]),
            code=int(row["code"]),
            name=self.hooks_table.string(int(row["name"])),
            microbatch=int(row["microbatch"]),
            stage=int(row["stage"]),
            layer=int(row["layer"]),
            thread=int(row["thread"]),
            flags=int(row["flags"]),
            values=tuple(float(value) for value in values),
        )

    def _section(self, buffer: memoryview, name: str, dtype: np.dtype[np.void]) -> Rows:
        return np.frombuffer(buffer, dtype, self[f"{name}_slots"], self[f"{name}_offset"])

    def _is_collective(self, rows: Rows) -> Mask:
        enqueue = rows["enqueue_ns"]
        op = rows["op"]
        known: Mask = (op > 0) & (op <= _NUM_OPS)
        return known & (enqueue >= self["created_monotonic_ns"]) & (enqueue <= self._latest_ns)

    def _is_event(self, rows: Rows) -> Mask:
        begin = rows["begin_ns"]
        return (begin >= 0) & (begin <= self._latest_ns) & (rows["kind"] > 0) & (rows["kind"] <= _NUM_KINDS)

    def _poll_tables(self) -> None:
        # The hooks announce a group before its first use, so the tap's table is read first.
        self.tap_table.poll(self["tap_table_used"])
        self.hooks_table.poll(self["hooks_table_used"])
        state = (len(self.tap_table.seen), len(self.hooks_table.made), self["world_size"])
        if state != self._groups_for:
            self._groups_for = state
            self.groups = [resolve(seen, self.hooks_table.made, self["world_size"]) for seen in self.tap_table.seen]
            self.groups_changed = True
            self.group_ranks = [seen.group_rank for seen in self.tap_table.seen]

    def _settle_collectives(self, new: Rows, now_ns: int, final: bool) -> tuple[Rows, dict[int, NDArray[Any]]]:
        old, alive = self.collectives.again(self.open_rows) if len(self.open_rows) else (self.open_rows, _NONE)
        rows = stack((old, new)) if len(old) else new
        if not len(rows):
            return rows, {}
        complete, flags = rows["complete_ns"], rows["flags"]
        waited = (rows["wait_end_ns"] > 0) | ((flags & _ASYNC) == 0) & (rows["wait_begin_ns"] == 0)
        settled = (complete > 0) & (rows["return_ns"] > 0) & (waited | (complete < now_ns - WAIT_GRACE_NS) | final)
        settled |= (flags & _FAILED) != 0
        unwaited = ((flags & _NO_COMPLETION) != 0) & (rows["wait_begin_ns"] == 0) & (rows["return_ns"] > 0)
        settled |= unwaited & (rows["return_ns"] < now_ns - WAIT_PATIENCE_NS)
        settled[: len(old)] |= ~alive  # nothing more will ever be known
        self.open_rows = pick(rows, ~settled)
        splits = self._open_splits | self.collectives.extras
        self._open_splits = {t: splits[t] for t in self.open_rows["ticket"].tolist() if t in splits} if splits else {}
        return pick(rows, settled), splits

    def _settle_events(self, new: Rows, final: bool) -> tuple[Rows, dict[int, NDArray[Any]]]:
        old, alive = self.events.again(self._open_events) if len(self._open_events) else (self._open_events, _NONE)
        rows = stack((old, new)) if len(old) else new
        if not len(rows):
            return rows, {}
        ended = (rows["end_ns"] > 0) | ~_IS_SPAN[rows["kind"]] | final
        ended[: len(old)] |= ~alive
        extras = self._open_extras | self.events.extras
        self._open_events = pick(rows, ~ended)
        self._open_extras = (
            {t: extras[t] for t in self._open_events["ticket"].tolist() if t in extras} if extras else {}
        )
        return pick(rows, ended), extras


def phase_name(code: int) -> str:
    """Lower-case name of a Phase code, "other" for one that this version does not know."""
    return _PHASES.get(code, "other")


def _map(path: Path) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RingError(f"{path.name}: can't open it: {error.strerror}") from error
    try:
        size = os.fstat(fd).st_size
        if size < wire.HEADER_BYTES:
            raise RingError(f"{path.name}: {size} bytes are less than a ring header ({wire.HEADER_BYTES})")
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _check(path: Path, header: np.void, size: int) -> None:
    if header["magic"].tobytes() != wire.MAGIC:
        raise RingError(f"{path.name}: not a ring file (magic {header['magic'].tobytes()!r})")
    if header["version"] != wire.VERSION:
        raise RingError(f"{path.name}: wire version {header['version']}, this agent reads {wire.VERSION}")
    for name, unit in (("collectives", COLLECTIVE.itemsize), ("events", EVENT.itemsize)):
        if not header[f"{name}_slots"] or int(header[f"{name}_offset"]) + int(header[f"{name}_slots"]) * unit > size:
            raise RingError(f"{path.name}: truncated: its {name} do not fit in {size} bytes")
    for name in ("tap_table", "hooks_table"):
        if int(header[f"{name}_offset"]) + int(header[f"{name}_bytes"]) > size:
            raise RingError(f"{path.name}: truncated: its {name} does not fit in {size} bytes")
