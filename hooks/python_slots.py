"""Slots of the collectives ring, written from Python: what `native/slot_ring.h` and `native/groups.h` do in C++.

    SlotWriter.open(...)  -> ticket      slot filled and published
    SlotWriter.stamp(ticket, field, ns)  later times, while the slot is still that operation's
    Groups.of(process_group) -> Group    numbers in the tap table, sequences

The GIL does not make `head += n` atomic, hence the locks; none is held while anything else is called.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ranksight.hooks import wire
from ranksight.hooks.ring import Ring

_SLOT = wire.COLLECTIVE
# The packers of the wire store a whole word at once: another process may look at any moment.
_U64, _I64, _U16 = _SLOT["ticket"].packer, _SLOT["enqueue_ns"].packer, _SLOT["flags"].packer
_BODY = struct.Struct("<" + "".join(f.code for f in _SLOT.fields if f.name not in {"ticket", "values"}))
_BODY_AT = _SLOT["enqueue_ns"].offset
_VALUES_AT = _SLOT["values"].offset
_FLAGS_AT = _SLOT["flags"].offset
_INLINE = _SLOT["values"].count
_MOST_TAGS = 1 << 16

assert _BODY_AT + _BODY.size == _VALUES_AT


@dataclass(slots=True)
class Group:
    """A process group in use: its number in the tap table and the next sequence numbers."""

    name: str
    number: int
    size: int
    sequence: Iterator[int] = field(default_factory=itertools.count)
    p2p: dict[tuple[int, int, int], Iterator[int]] = field(default_factory=dict)

    def p2p_sequence(self, direction: int, peer: int, tag: int) -> int:
        """Next number of the messages that way; starts again when more than 65536 tags were in use."""
        if len(self.p2p) >= _MOST_TAGS:
            self.p2p.clear()
        return next(self.p2p.setdefault((direction, peer, tag), itertools.count()))


class Groups:
    """Groups by name, until they are forgotten."""

    def __init__(self, ring: Ring, clock_ns: Callable[[], int]) -> None:
        self._ring, self._clock_ns = ring, clock_ns
        self._groups: dict[str, Group] = {}
        self._seen: dict[str, int] = {}

    def of(self, process_group: Any) -> Group:
        """The entry of a process group, made at its first use."""
        name: str = process_group.group_name
        group = self._groups.get(name)
        if group is None:
            incarnation = self._seen.get(name, 0)
            self._seen[name] = incarnation + 1
            head = wire.GROUP_SEEN.pack(self._clock_ns(), process_group.size(), process_group.rank(), incarnation)
            text = f"{name}\0{process_group.group_desc}".encode()
            number = self._ring.tap_table.append(wire.TableKind.GROUP_SEEN, head + text)
            group = self._groups[name] = Group(name, number, process_group.size())
        return group

    def forget(self, name: str | None) -> None:
        """The next use of `name` (of every group when None) makes a new entry."""
        if name is None:
            self._groups.clear()
        else:
            self._groups.pop(name, None)


class SlotWriter:
    """Writer of the collectives ring of one process."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._buffer = ring, ring.buffer
        self._offset, self._slots = ring["collectives_offset"], ring["collectives_slots"]
        self._lock = threading.Lock()
        self._most_values = _INLINE + min(255, self._slots // 4) * wire.COLLECTIVE_EXTRA_VALUES

    def add(self, name: str, amount: int = 1) -> None:
        """Raise a counter of the header."""
        with self._lock:
            self._ring[name] += amount

    def open(self, body: list[int], shape: tuple[int, ...], send: list[int], receive: list[int]) -> int:
        """Publish a slot and return its ticket. `body` is in the order of `wire.COLLECTIVE`, without ticket and values."""
        dims = shape[:_INLINE]
        send_kept = send[: self._most_values - len(dims)]
        receive_kept = receive[: self._most_values - len(dims) - len(send_kept)]
        values = [*dims, *send_kept, *receive_kept]
        extra = -(-max(0, len(values) - _INLINE) // wire.COLLECTIVE_EXTRA_VALUES)
        if len(send_kept) + len(receive_kept) < len(send) + len(receive):
            body[_FLAGS] |= wire.CollectiveFlag.TRUNCATED
        body[_N_DIMS], body[_N_EXTRA], body[_N_SEND], body[_N_RECV] = (
            len(dims),
            extra,
            len(send_kept),
            len(receive_kept),
        )
        with self._lock:
            index = self._ring["collectives_head"]
            self._ring["collectives_head"] = index + 1 + extra
            self._ring["collectives_count"] += 1
        at = self._at(index)
        _U64.pack_into(self._buffer, at, 0)
        _BODY.pack_into(self._buffer, at + _BODY_AT, *body)
        self._write_values(at + _VALUES_AT, values[:_INLINE])
        for number in range(extra):
            begin = _INLINE + number * wire.COLLECTIVE_EXTRA_VALUES
            slot = self._at(index + 1 + number)
            _U64.pack_into(self._buffer, slot, 0)
            self._write_values(slot + 8, values[begin : begin + wire.COLLECTIVE_EXTRA_VALUES])
            _U64.pack_into(self._buffer, slot, index + 2 + number)
        _U64.pack_into(self._buffer, at, index + 1)
        return index + 1

    def owns(self, ticket: int) -> bool:
        """Whether the slot still belongs to that operation."""
        owner: int = _U64.unpack_from(self._buffer, self._at(ticket - 1))[0]
        return owner == ticket

    def time_of(self, ticket: int, at: wire.Field) -> int:
        """A time field of the slot, 0 when it is not set."""
        ns: int = _I64.unpack_from(self._buffer, self._at(ticket - 1) + at.offset)[0]
        return ns

    def stamp(self, ticket: int, at: wire.Field, ns: int) -> bool:
        """Store a time; False when the slot was overwritten meanwhile."""
        if not self.owns(ticket):
            return False
        _I64.pack_into(self._buffer, self._at(ticket - 1) + at.offset, ns)
        return True

    def flags(self, ticket: int) -> int:
        """Flags of the slot."""
        value: int = _U16.unpack_from(self._buffer, self._at(ticket - 1) + _FLAGS_AT)[0]
        return value

    def change_flags(self, ticket: int, add: int, clear: int = 0) -> None:
        """Set and clear flags, while the slot is still that operation's."""
        with self._lock:
            if self.owns(ticket):
                flags = self.flags(ticket) & ~clear | add
                _U16.pack_into(self._buffer, self._at(ticket - 1) + _FLAGS_AT, flags)

    def _at(self, index: int) -> int:
        return self._offset + index % self._slots * _SLOT.size

    def _write_values(self, at: int, values: list[int]) -> None:
        struct.pack_into(f"<{len(values)}q", self._buffer, at, *values)


_ORDER = [f.name for f in _SLOT.fields if f.name not in {"ticket", "values"}]
_FLAGS, _N_DIMS, _N_EXTRA, _N_SEND, _N_RECV = (
    _ORDER.index(name) for name in ("flags", "n_dims", "n_extra", "n_send", "n_recv")
)
