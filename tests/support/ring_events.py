"""Reads what the Python hooks of one process have written: header, events, notes, groups.

    said = read(path)
    said.values("LOSS")            [(step, 0.25), ...]
    said.spans("STEP")             [(step, begin_ns, end_ns), ...]
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ranksight.hooks import wire


@dataclass(frozen=True)
class RingEvent:
    """One event, decoded."""

    kind: str
    begin_ns: int
    end_ns: int
    step: int
    code: int
    layer: int
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Said:
    """All that one ring file holds from the hooks."""

    header: dict[str, int]
    events: list[RingEvent]
    groups: list[tuple[str, str, tuple[int, ...]]]  # name, axis, global ranks

    def of(self, kind: str) -> list[RingEvent]:
        return [event for event in self.events if event.kind == kind]

    def values(self, kind: str) -> list[tuple[int, float]]:
        return [(event.step, event.values[0]) for event in self.of(kind)]

    def spans(self, kind: str) -> list[tuple[int, int, int]]:
        return [(event.step, event.begin_ns, event.end_ns) for event in self.of(kind)]

    def notes(self) -> list[str]:
        return [event.name for event in self.of("NOTE")]

    def phase_seconds(self, *, from_step: int = 0) -> dict[str, float]:
        seconds: dict[str, float] = defaultdict(float)
        for event in self.of("PHASE"):
            if event.step >= from_step:
                seconds[wire.Phase(event.code).name.lower()] += (event.end_ns - event.begin_ns) / 1e9
        return dict(seconds)

    def axes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Last axis said and ranks, by group name."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, axis, ranks in self.groups:
            found[name] = (axis or found.get(name, ("", ()))[0], ranks)
        return found


def read(path: Path) -> Said:
    data = path.read_bytes()
    header = {
        field.name: field.packer.unpack_from(data, field.offset)[0] for field in wire.HEADER.fields if field.count == 1
    }
    strings, groups = _table(data, header["hooks_table_offset"], header["hooks_table_used"])
    events = []
    slots, begin = header["events_slots"], header["events_offset"]
    index = max(0, header["events_head"] - slots)
    while index < header["events_head"]:
        at = begin + index % slots * wire.EVENT.size
        raw = {field.name: field.packer.unpack_from(data, at + field.offset) for field in wire.EVENT.fields}
        assert raw["ticket"][0] == index + 1
        values = list(raw["values"])
        for extra in range(raw["n_extra"][0]):
            slot = begin + (index + 1 + extra) % slots * wire.EVENT.size
            values += memoryview(data)[slot + 8 : slot + wire.EVENT.size].cast("d").tolist()
        name = raw["name"][0]
        events.append(
            RingEvent(
                wire.EventKind(raw["kind"][0]).name, raw["begin_ns"][0], raw["end_ns"][0], raw["step"][0], raw["code"][0],
                raw["layer"][0], strings[name - 1] if name else "", tuple(values[: raw["n_values"][0]]),
            )
        )  # fmt: skip
        index += 1 + raw["n_extra"][0]
    return Said(header, events, groups)


def read_all(folder: Path) -> dict[int, Said]:
    """The rings in a folder by rank; two of one rank are an AssertionError."""
    by_rank: dict[int, Said] = {}
    for path in folder.glob("*.ring"):
        said = read(path)
        assert said.header["rank"] not in by_rank, f"two rings of rank {said.header['rank']}"
        by_rank[said.header["rank"]] = said
    return by_rank


def _table(data: bytes, offset: int, used: int) -> tuple[list[str], list[tuple[str, str, tuple[int, ...]]]]:
    strings: list[str] = []
    groups: list[tuple[str, str, tuple[int, ...]]] = []
    at = offset
    while at < offset + used:
        length, kind, _ = wire.TABLE_ENTRY.unpack_from(data, at)
        payload = data[at + wire.TABLE_ENTRY.size : at + wire.TABLE_ENTRY.size + length]
        if kind == wire.TableKind.STRING:
            strings.append(payload.decode())
        elif kind == wire.TableKind.GROUP_MADE:
            _, count = wire.GROUP_MADE.unpack_from(payload)
            end = wire.GROUP_MADE.size + 4 * count
            name, _, axis = payload[end:].decode().partition("\0")
            groups.append((name, axis, tuple(memoryview(payload[wire.GROUP_MADE.size : end]).cast("i"))))
        at += wire.TABLE_ENTRY.size + (length + 7) // 8 * 8
    return strings, groups
