"""Plain reading of a ring file: every slot, table entry and counter as Python values. For tests and their rank scripts."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from ranksight.hooks import wire
from ranksight.hooks.ring import Ring

Slot = dict[str, Any]


def open_ring(path: Path) -> Ring:
    """Map the ring file of another process."""
    with path.open("r+b") as file:
        return Ring(path, mmap.mmap(file.fileno(), 0))


def slots(ring: Ring) -> list[Slot]:
    """The slots still in the ring, oldest first; shape and splits put together again, names instead of codes."""
    head, count = ring["collectives_head"], ring["collectives_slots"]
    found = []
    index = max(0, head - count)
    while index < head:
        slot = _fields(ring, index)
        if slot["ticket"] != index + 1:
            index += 1
            continue
        slot["op"] = wire.OP_NAMES.get(slot["op"])
        values = list(slot.pop("values"))
        for number in range(slot["n_extra"]):
            at = _at(ring, index + 1 + number)
            assert int.from_bytes(ring.buffer[at : at + 8], "little") == index + 2 + number
            values += memoryview(ring.buffer[at + 8 : at + wire.COLLECTIVE.size]).cast("q").tolist()
        dims, sends, receives = slot["n_dims"], slot["n_send"], slot["n_recv"]
        slot["shape"] = values[:dims]
        slot["send_splits"] = values[dims : dims + sends]
        slot["recv_splits"] = values[dims + sends : dims + sends + receives]
        slot["flags"] = wire.CollectiveFlag(slot["flags"])
        found.append(slot)
        index += 1 + slot["n_extra"]
    return found


def entries(ring: Ring, kind: wire.TableKind) -> list[bytes]:
    """Payloads of one kind in the tap table; the first one has number 1."""
    found = []
    at = ring["tap_table_offset"]
    end = at + ring["tap_table_used"]
    while at < end:
        length, entry_kind, _ = wire.TABLE_ENTRY.unpack_from(ring.buffer, at)
        at += wire.TABLE_ENTRY.size
        if entry_kind == kind:
            found.append(ring.buffer[at : at + length])
        at += (length + 7) // 8 * 8
    return found


def strings(ring: Ring) -> dict[int, str]:
    """Texts of the tap table by number."""
    return {number: text.decode() for number, text in enumerate(entries(ring, wire.TableKind.STRING), 1)}


def groups(ring: Ring) -> list[tuple[str, str, int, int, int]]:
    """(name, description, size, own rank, incarnation) in the order of their numbers."""
    found = []
    for payload in entries(ring, wire.TableKind.GROUP_SEEN):
        _, size, rank, incarnation = wire.GROUP_SEEN.unpack_from(payload)
        name, _, description = payload[wire.GROUP_SEEN.size :].decode().partition("\0")
        found.append((name, description, size, rank, incarnation))
    return found


def _at(ring: Ring, index: int) -> int:
    return ring["collectives_offset"] + index % ring["collectives_slots"] * wire.COLLECTIVE.size


def _fields(ring: Ring, index: int) -> Slot:
    at = _at(ring, index)
    slot: Slot = {}
    for field in wire.COLLECTIVE.fields:
        value = field.packer.unpack_from(ring.buffer, at + field.offset)
        slot[field.name] = value if field.count > 1 else value[0]
    return slot
