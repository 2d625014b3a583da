"""Rows of the rings as tables of the archive. Pure but for the strings that it remembers; no loop over records.

    [(source, collective rows), ...] -> Converter.collectives -> pyarrow.Table of schema.COLLECTIVES
    [(source, event rows, extras)]   -> Converter.events      -> pyarrow.Table of schema.EVENTS

Numbers of groups and strings are those of each ring; they become numbers of one dictionary over all rings here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ranksight.agent.archive.schema import SCHEMAS
from ranksight.agent.reading.groups import GroupRegistry
from ranksight.agent.reading.reader import SPANS
from ranksight.agent.reading.slots import Rows, stack
from ranksight.hooks import wire

if TYPE_CHECKING:
    from ranksight.agent.observer import Source

Extras = Mapping[int, NDArray[Any]]
Ints = NDArray[np.int64]

_IS_SPAN = np.zeros(1 << 16, bool)
_IS_SPAN[list(SPANS)] = True
_INLINE = wire.EVENT["values"].count


def _names(enum: type[wire.Phase | wire.Action | wire.EventKind]) -> list[str]:
    """Lower-case names by code, "" where there is none."""
    names = [""] * (max(enum) + 1)
    for member in enum:
        names[member] = member.name.lower()
    return names


_OPS = ["", *(public for _, public in wire.OPS)]
_PHASES, _ACTIONS, _KINDS = _names(wire.Phase), _names(wire.Action), _names(wire.EventKind)
_WHATS = [*_PHASES, *_ACTIONS]


def _words(codes: NDArray[np.integer[Any]], names: Sequence[str]) -> pa.Array:
    """Names by code; null for a code without one."""
    valid = (codes >= 0) & (codes < len(names))
    valid &= np.array([bool(name) for name in names] or [False])[np.where(valid, codes, 0)]
    indices = pa.array(np.where(valid, codes, 0).astype(np.int32), mask=~valid)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names or [""], pa.string()))


def _unless(values: NDArray[Any], missing: NDArray[np.bool_], kind: str) -> pa.Array:
    return pa.array(values.astype(kind), mask=missing)


class Converter:
    """Makes tables for one host; remembers the strings of all rings in one list."""

    def __init__(self, host: str, registry: GroupRegistry) -> None:
        self._host, self._registry = host, registry
        self._strings: list[str] = []
        self._numbers: dict[str, int] = {}
        self._of_ring: dict[tuple[int, str], list[int]] = {}

    def collectives(self, found: Sequence[tuple[Source, Rows]]) -> pa.Table:
        """Operations of any rings, in the order given."""
        rows = stack([rows for _, rows in found])
        counts = [len(rows) for _, rows in found]
        group = _gather([source.groups for source, _ in found], counts, rows["group"])
        site = _gather([self._string_numbers(source, "tap") for source, _ in found], counts, rows["call_site"])
        generation = np.repeat([source.reader["generation"] for source, _ in found], counts)
        flags = rows["flags"]
        known = [entry.group for entry in self._registry.groups]
        members = [",".join(map(str, each.ranks)) for each in known]
        columns: dict[str, Any] = {
            "host": self._hosts(len(rows)),
            "rank": np.repeat([source.rank for source, _ in found], counts).astype("i4"),
            "generation": generation.astype("i4"),
            "group": _words(group, [each.name for each in known]),
            "axis": _words(group, [each.axis for each in known]),
            "incarnation": np.array([each.incarnation for each in known], np.int32)[group],
            "members": _words(group, members),
            "seq": rows["group_seq"].astype("i8"),
            "op": _words(rows["op"], _OPS),
            "peer": _peers(group, rows["peer"], [each.ranks for each in known]),
            "tag": rows["tag"],
            "reduce_op": _words(rows["reduce_op"], wire.REDUCE_OPS),
            "dtype": _words(rows["dtype"], wire.DTYPES),
            "bytes": rows["bytes"].astype("i8"),
            "numel": rows["numel"].astype("i8"),
            "fingerprint": _unless(rows["fingerprint"], rows["fingerprint"] == 0, "u8"),
            **_place(rows, rows["stage"].astype("i4") - 1),
            "phase": _words(rows["phase"], _PHASES),
            "call_site": _words(site, self._strings),
            "thread": rows["thread"].astype("i8"),
            "asynchronous": (flags & wire.CollectiveFlag.ASYNC) != 0,
            "failed": (flags & wire.CollectiveFlag.FAILED) != 0,
            "upper_bound": (flags & wire.CollectiveFlag.UPPER_BOUND) != 0,
            "enqueue_ns": rows["enqueue_ns"],
        }
        for name in ("return_ns", "wait_begin_ns", "wait_end_ns", "complete_ns"):
            columns[name] = _unless(rows[name], rows[name] == 0, "i8")
        return _table("collectives", columns)

    def events(self, found: Sequence[tuple[Source, Rows, Extras]]) -> pa.Table:
        """Events of any rings, in the order given."""
        rows = stack([rows for _, rows, _ in found])
        counts = [len(rows) for _, rows, _ in found]
        text = _gather([self._string_numbers(source, "hooks") for source, _, _ in found], counts, rows["name"])
        kind, code = rows["kind"], rows["code"].astype("i4")
        phase, action = kind == wire.EventKind.PHASE, kind == wire.EventKind.PIPELINE
        what = np.where(phase & (code < len(_PHASES)), code, -1)
        what = np.where(action & (code < len(_ACTIONS)), code + len(_PHASES), what)
        generation = np.repeat([source.reader["generation"] for source, _, _ in found], counts)
        return _table("events", {
            "host": self._hosts(len(rows)),
            "rank": np.repeat([source.rank for source, _, _ in found], counts).astype("i4"),
            "generation": generation.astype("i4"),
            "kind": _words(kind, _KINDS),
            "what": _words(what, _WHATS),
            "code": code,
            "text": _words(text, self._strings),
            **_place(rows, rows["stage"]),
            "layer": _unless(rows["layer"], rows["layer"] < 0, "i4"),
            "thread": rows["thread"].astype("i8"),
            "begin_ns": rows["begin_ns"],
            "end_ns": _unless(rows["end_ns"], (rows["end_ns"] == 0) | ~_IS_SPAN[kind], "i8"),
            "values": _values(rows, counts, [extras for _, _, extras in found]),
        })  # fmt: skip

    def _hosts(self, count: int) -> pa.Array:
        return _words(np.zeros(count, np.int32), [self._host])

    def _string_numbers(self, source: Source, table: str) -> list[int]:
        """Numbers in the common list by the ring's own, -1 for "none"."""
        numbers = self._of_ring.setdefault((source.number, table), [-1])
        strings = (source.reader.tap_table if table == "tap" else source.reader.hooks_table).strings
        for string in strings[len(numbers) - 1 :]:
            number = self._numbers.setdefault(string, len(self._strings))
            if number == len(self._strings):
                self._strings.append(string)
            numbers.append(number)
        return numbers


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    """The columns in the order of the schema; DuckDB and the reader see dictionaries as strings."""
    return pa.table([columns[field.name] for field in SCHEMAS[name]], names=SCHEMAS[name].names)


def _gather(tables: Sequence[Sequence[int]], counts: Sequence[int], own: NDArray[Any]) -> Ints:
    """Numbers over all rings from each ring's own; what a ring has not yet said is its number 0, "none"."""
    sizes = np.array([len(table) for table in tables])
    offsets = np.repeat(np.cumsum(sizes) - sizes, counts)
    own = np.where(own < np.repeat(sizes, counts), own, 0)
    whole: Ints = np.concatenate([np.asarray(table, np.int64) for table in tables])[offsets + own]
    return whole


def _place(rows: Rows, stage: NDArray[Any]) -> dict[str, Any]:
    return {
        "step": rows["step"],
        "microbatch": _unless(rows["microbatch"], rows["microbatch"] < 0, "i4"),
        "stage": _unless(stage, stage < 0, "i4"),
    }


def _peers(group: Ints, peer: NDArray[Any], members: Sequence[Sequence[int]]) -> pa.Array:
    """Global rank of each peer, which the rings name by its rank within the group."""
    sizes = np.array([len(ranks) for ranks in members])
    known = (peer >= 0) & (peer < sizes[group])
    offsets = np.cumsum(sizes) - sizes
    flat = np.concatenate([np.asarray(ranks, np.int32) for ranks in members] + [np.zeros(1, np.int32)])
    return _unless(flat[np.where(known, offsets[group] + peer, 0)], ~known, "i4")


def _values(rows: Rows, counts: Sequence[int], extras: Sequence[Extras]) -> pa.Array:
    """Values of each event as a list; those of continuation slots are rare and put in one by one."""
    lengths = np.minimum(rows["n_values"].astype(np.int64), _INLINE)
    inline = rows["values"][np.arange(_INLINE) < lengths[:, None]]
    ends = np.cumsum(lengths)
    if not (rows["n_extra"] > 0).any():
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, np.ascontiguousarray(inline))
    ring = np.repeat(np.arange(len(counts)), counts)
    pieces: list[NDArray[Any]] = []
    before = 0
    for at in np.flatnonzero(rows["n_extra"] > 0).tolist():
        more = extras[int(ring[at])].get(int(rows["ticket"][at]))
        if more is not None:
            more = more[: int(rows["n_values"][at]) - _INLINE]
            pieces += [inline[before : ends[at]], more]
            before = int(ends[at])
            lengths[at] += len(more)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.concatenate([*pieces, inline[before:]]))
