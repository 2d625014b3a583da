"""Writes rings as a rank would, without torch: collectives, events, groups, torn and late slots.

writer = RingWriter(folder, rank=0, world_size=2)
group = writer.group("0", size=2, group_rank=0, ranks=[0, 1], axis="dp")
ticket = writer.collective(group, seq=0, enqueue_ns=1000, complete_ns=0)
writer.complete(ticket, 2000)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ranksight.agent.reading.slots import COLLECTIVE, Rows
from ranksight.hooks import wire
from ranksight.hooks.ring import Ring, Sizes, create

SMALL = Sizes(collectives=64, events=32, tap_table=1 << 14, hooks_table=1 << 14)


def put(buffer: object, layout: wire.Layout, at: int, name: str, *values: float) -> None:
    """Store one field of a layout at its offset behind `at`."""
    field = layout[name]
    field.packer.pack_into(buffer, at + field.offset, *values)  # type: ignore[arg-type]


class RingWriter:
    """One rank's ring. `pid` only names the process for the reader; the file is made by this one."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        *,
        sizes: Sizes = SMALL,
        generation: int = 0,
        local_rank: int | None = None,
        pid: int | None = None,
        start_ticks: int = 1,
    ) -> None:
        draft = create(directory / f".draft-{generation}-{rank}", sizes, generation)
        self.path = directory / f"{pid or rank + 1}-{start_ticks + generation}.ring"
        draft.path.replace(self.path)
        draft.path.parent.rmdir()
        self.ring: Ring = draft
        for name, value in {
            "pid": pid or rank + 1, "start_ticks": start_ticks + generation, "rank": rank, "world_size": world_size,
            "local_rank": rank if local_rank is None else local_rank, "created_monotonic_ns": 1,
            "created_wall_ns": 1 + 1_700_000_000_000_000_000, "tap": wire.Tap.NATIVE,
        }.items():  # fmt: skip
            self.ring[name] = value

    def group(
        self, name: str, size: int, group_rank: int, *, ranks: list[int] | None = None, axis: str = "",
        incarnation: int = 0, description: str = "undefined", first_use_ns: int = 10,
    ) -> int:  # fmt: skip
        """Announce a group; its number in the tap table."""
        if ranks is not None:
            self.ring.hooks_table.group_made(first_use_ns - 1, ranks, name, axis)
        payload = wire.GROUP_SEEN.pack(first_use_ns, size, group_rank, incarnation) + f"{name}\0{description}".encode()
        return self.ring.tap_table.append(wire.TableKind.GROUP_SEEN, payload)

    def collective(
        self, group: int, seq: int, enqueue_ns: int, complete_ns: int = 0, *, op: str = "allreduce_", publish: bool = True,
        values: tuple[int, ...] = (), **fields: int,
    ) -> int:  # fmt: skip
        """One operation in the next slots; returns its ticket. Synchronous and without a recorded wait by default."""
        buffer, slots, base = self.ring.buffer, self.ring["collectives_slots"], self.ring["collectives_offset"]
        index = self.ring["collectives_head"]
        rest = values[16:]
        extra = -(-len(rest) // wire.COLLECTIVE_EXTRA_VALUES)
        self.ring["collectives_head"] = index + 1 + extra
        self.ring["collectives_count"] = self.ring["collectives_count"] + 1
        at = base + index % slots * wire.COLLECTIVE.size
        put(buffer, wire.COLLECTIVE, at, "ticket", 0)
        defaults = {
            "enqueue_ns": enqueue_ns, "return_ns": enqueue_ns + 1, "wait_begin_ns": 0, "wait_end_ns": 0,
            "complete_ns": complete_ns, "group_seq": seq, "bytes": 4096, "fingerprint": 0, "step": 0, "group": group,
            "call_site": 0, "thread": 7, "peer": -1, "tag": 0, "microbatch": -1, "op": wire.OP_CODES[op],
            "reduce_op": 0, "dtype": 6, "phase": 0, "flags": 0, "n_dims": 0, "n_extra": extra, "n_send": 0, "n_recv": 0,
            "stage": 0, "numel": 1024,
        }  # fmt: skip
        for name, value in (defaults | fields).items():
            put(buffer, wire.COLLECTIVE, at, name, value)
        put(buffer, wire.COLLECTIVE, at, "values", *values[:16], *(0,) * (16 - len(values[:16])))
        for number in range(extra):
            slot = base + (index + 1 + number) % slots * wire.COLLECTIVE.size
            for place in range(wire.COLLECTIVE_EXTRA_VALUES):
                where = number * wire.COLLECTIVE_EXTRA_VALUES + place
                value = rest[where] if where < len(rest) else 0
                buffer[slot + 8 * (place + 1) : slot + 8 * (place + 2)] = value.to_bytes(8, "little", signed=True)
            put(buffer, wire.COLLECTIVE, slot, "ticket", index + 2 + number)
        if publish:
            self.publish(index + 1)
        return index + 1

    def bulk(self, rows: Rows) -> None:
        """Many complete operations at once; tickets are given here. Takes about a microsecond a row."""
        slots = np.frombuffer(
            self.ring.buffer, COLLECTIVE, self.ring["collectives_slots"], self.ring["collectives_offset"]
        )
        head = self.ring["collectives_head"]
        rows["ticket"] = np.arange(head + 1, head + 1 + len(rows))
        slots[np.arange(head, head + len(rows)) % len(slots)] = rows
        self.ring["collectives_count"] = self.ring["collectives_count"] + len(rows)
        self.ring["collectives_head"] = head + len(rows)

    def publish(self, ticket: int) -> None:
        """Store the ticket of a record that was written with `publish=False`."""
        put(self.ring.buffer, wire.COLLECTIVE, self.at(ticket), "ticket", ticket)

    def complete(self, ticket: int, complete_ns: int, **fields: int) -> None:
        """Store the completion, and other late fields, of a record in place."""
        for name, value in (fields | {"complete_ns": complete_ns}).items():
            put(self.ring.buffer, wire.COLLECTIVE, self.at(ticket), name, value)

    def at(self, ticket: int) -> int:
        """Byte offset of a ticket's slot."""
        return self.ring["collectives_offset"] + (ticket - 1) % self.ring["collectives_slots"] * wire.COLLECTIVE.size
