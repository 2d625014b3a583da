"""The append-only tables of a ring file: strings, groups seen by the tap, groups made by the hooks.

    tap table:    call sites, GROUP_SEEN (its number stands in the records) --+
    hooks table:  names, GROUP_MADE (global ranks, axis) ---------------------+--> resolve -> records.Group

Both tables have one writer each and grow only, so a reader keeps the offset it has come to. A group that the hooks did
not announce still gets a size, and the ranks 0..n-1 when it spans the world.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ranksight.hooks import wire
from ranksight.hooks.records import Group

log = logging.getLogger(__name__)


class GroupSeen(NamedTuple):
    """A process group at its first use by the tap; `group_rank` is this process's own rank within it."""

    first_use_ns: int
    size: int
    group_rank: int
    incarnation: int
    name: str
    description: str


class GroupMade(NamedTuple):
    """A process group as the Python hooks saw it being made or named."""

    made_ns: int
    ranks: tuple[int, ...]
    name: str
    axis: str


class Table:
    """One table, decoded as far as its writer has come. Numbers start from 1, 0 is "none"."""

    def __init__(self, buffer: memoryview, offset: int, size: int) -> None:
        self._buffer, self._offset, self._size = buffer, offset, size
        self._read = 0
        self.strings: list[str] = []
        self.seen: list[GroupSeen] = []
        self.made: list[GroupMade] = []

    def poll(self, used: int) -> bool:
        """Decode entries up to `used` bytes; True when there were new ones."""
        used = min(used, self._size)
        if used <= self._read:
            return False
        while self._read + wire.TABLE_ENTRY.size <= used:
            at = self._offset + self._read
            length, kind, _ = wire.TABLE_ENTRY.unpack_from(self._buffer, at)
            begin = at + wire.TABLE_ENTRY.size
            self._decode(kind, bytes(self._buffer[begin : begin + length]))
            self._read += wire.TABLE_ENTRY.size + (length + 7) // 8 * 8
        return True

    def string(self, number: int) -> str | None:
        """Text of a string number; None for 0 and for a number that is not there."""
        return self.strings[number - 1] if 0 < number <= len(self.strings) else None

    def release(self) -> None:
        """Let go of the mapped file; what was decoded stays."""
        self._buffer = memoryview(b"")

    def _decode(self, kind: int, payload: bytes) -> None:
        if kind == wire.TableKind.STRING:
            self.strings.append(payload.decode("utf-8", "replace"))
        elif kind == wire.TableKind.GROUP_SEEN:
            first_use_ns, size, group_rank, incarnation = wire.GROUP_SEEN.unpack_from(payload)
            name, description = _pair(payload[wire.GROUP_SEEN.size :])
            self.seen.append(GroupSeen(first_use_ns, size, group_rank, incarnation, name, description))
        elif kind == wire.TableKind.GROUP_MADE:
            made_ns, count = wire.GROUP_MADE.unpack_from(payload)
            end = wire.GROUP_MADE.size + 4 * count
            ranks = tuple(memoryview(payload)[wire.GROUP_MADE.size : end].cast("i"))
            name, axis = _pair(payload[end:])
            self.made.append(GroupMade(made_ns, ranks, name, axis))
        else:
            log.warning("table entry of unknown kind %d skipped", kind)


def _pair(text: bytes) -> tuple[str, str]:
    first, _, second = text.partition(b"\0")
    return first.decode("utf-8", "replace"), second.decode("utf-8", "replace")


def resolve(seen: GroupSeen, made: list[GroupMade], world_size: int) -> Group:
    """What is known about a group: the tap's view joined with what the hooks said about the same name.

    A name can be used again after a group is destroyed: the ranks are those of the last group made before the first
    use. An axis may be given later (`name_axis`), so the last one said for these ranks counts.
    """
    same = [entry for entry in made if entry.name == seen.name and len(entry.ranks) == seen.size]
    before = [entry for entry in same if entry.made_ns <= seen.first_use_ns]
    ranks = (before or same)[-1 if before else 0].ranks if same else ()
    if not ranks and seen.size == world_size:
        ranks = tuple(range(world_size))
    axes = [entry.axis for entry in same if entry.axis and entry.ranks == ranks]
    return Group(seen.name, axes[-1] if axes else _default_axis(seen, world_size), seen.incarnation, ranks, seen.size)


def _default_axis(seen: GroupSeen, world_size: int) -> str:
    if seen.description.startswith("mesh_"):
        return seen.description.removeprefix("mesh_")
    if seen.size == world_size:
        return "world"
    return seen.description if seen.description not in ("", "undefined") else "group"
