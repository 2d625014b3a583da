"""Reading one ring section (collectives or events) of a live file, in order and without disturbing its writer.

    head, slots -> SlotReader.read -> rows that were published since the last read, each exactly once
                                   -> open rows, copied again until they are settled or their slot is overwritten

Rows are consumed in order up to the first slot that is reserved but not yet published: until then nobody can know how
many continuation slots belong to it. A slot whose ticket is newer than expected was overwritten before it was read.
Its record is lost, and so may be the head of the continuation slots behind it; `plausible` tells a record from an
orphaned continuation. The ticket is compared before and after the copy, so a torn record never gets out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranksight.hooks import wire

Rows = NDArray[np.void]
Mask = NDArray[np.bool_]

_NUMPY = {"B": "u1", "H": "<u2", "I": "<u4", "i": "<i4", "Q": "<u8", "q": "<i8", "d": "<f8"}


def dtype_of(layout: wire.Layout) -> np.dtype[np.void]:
    """The structured dtype of a layout: same names, offsets and size. Slot tickets are read as signed, see `read`."""
    formats: list[Any] = []
    for field in layout.fields:
        code = "<i8" if field.name == "ticket" else _NUMPY[field.code]
        formats.append((code, (field.count,)) if field.count > 1 else code)
    return np.dtype(
        {
            "names": [field.name for field in layout.fields],
            "formats": formats,
            "offsets": [field.offset for field in layout.fields],
            "itemsize": layout.size,
        }
    )


HEADER = dtype_of(wire.HEADER)
COLLECTIVE = dtype_of(wire.COLLECTIVE)
EVENT = dtype_of(wire.EVENT)


def pick(rows: Rows, chosen: Mask | NDArray[np.integer[Any]]) -> Rows:
    """`rows[chosen]`, moving whole records as bytes: numpy would copy a structured array field by field."""
    return _as(_as(rows, _bytes_of(rows.dtype))[chosen], rows.dtype)


def stack(parts: Sequence[Rows]) -> Rows:
    """Put rows of one dtype behind each other; as bytes for the same reason."""
    if len(parts) == 1:
        return parts[0]
    raw = _bytes_of(parts[0].dtype)
    return _as(np.concatenate([_as(part, raw) for part in parts]), parts[0].dtype)


def _as(rows: Rows, dtype: np.dtype[np.void]) -> Rows:
    """`rows.view(dtype)` for contiguous rows, without the checks in Python that numpy makes for structured types."""
    return np.ndarray(len(rows), dtype, rows)


@lru_cache
def _bytes_of(dtype: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype((np.void, dtype.itemsize))


class SlotReader:
    """Reader of one section. `captured` counts records, `lost_slots` slots that were overwritten unread."""

    def __init__(self, slots: Rows, plausible: Callable[[Rows], Mask], values_code: str) -> None:
        self._slots = slots
        self._plausible = plausible
        self._raw = slots.view(_bytes_of(slots.dtype))
        self._tickets = slots["ticket"]
        self._values_code = values_code
        self._next = 0
        self.captured = 0
        self.lost_slots = 0
        self.unpublished = 0  # slots reserved but not published at the last read
        self.extras: dict[int, NDArray[Any]] = {}  # ticket -> values of continuation slots, of the last read

    def read(self, head: int, final: bool = False) -> Rows:
        """Records published up to `head`. With `final` the writer is dead: slots it left unpublished are skipped."""
        self.extras = {}
        found: list[Rows] = []
        while self._next < head:
            rows, stopped = self._step(head, final)
            if len(rows):
                found.append(rows)
            if stopped:
                break
        self.unpublished = head - self._next
        if not found:
            return self._slots[:0].copy()
        records = stack(found)
        self.captured += len(records)
        return records

    def again(self, rows: Rows) -> tuple[Rows, Mask]:
        """Copies of `rows` as they are now, and which of them are still in the ring; the others come back unchanged."""
        tickets = rows["ticket"]
        places = (tickets - 1) % len(self._slots)
        raw = self._raw[places]
        fresh = _as(raw, rows.dtype)
        alive: Mask = (fresh["ticket"] == tickets) & (self._tickets[places] == tickets)
        if not alive.all():
            raw[~alive] = _as(rows, raw.dtype)[~alive]
        return fresh, alive

    def backlog(self, head: int) -> float:
        """Share of the section that is written up to `head` and not read; above 1 records are lost."""
        return (head - self._next) / len(self._slots)

    def release(self) -> None:
        """Let go of the mapped file; open rows that are looked at `again` count as overwritten from now on."""
        self._slots = np.zeros(1, self._slots.dtype)
        self._raw = self._slots.view(self._raw.dtype)
        self._tickets = self._slots["ticket"]

    def _step(self, head: int, final: bool) -> tuple[Rows, bool]:
        """Consume slots up to `head` or the first unpublished one; True when nothing more can be read now."""
        size = len(self._slots)
        if head - self._next > size:
            self.lost_slots += head - size - self._next
            self._next = head - size
        begin = self._next
        end = min(head, begin + size - begin % size)  # up to the wrap
        place = slice(begin % size, begin % size + end - begin)
        rows = _as(self._raw[place].copy(), self._slots.dtype)
        wanted = np.arange(begin + 1, end + 1)
        tickets = rows["ticket"]
        # The ticket is stored last and taken away first, so it vouches for the bytes only if it is there twice.
        after = self._tickets[place].copy()
        whole = (tickets == wanted) & (after == wanted)
        stopped = False
        if not whole.all():
            unpublished = (tickets < wanted) & (after < wanted) | (after == wanted) & (tickets != wanted)
            if not final and unpublished.any():
                count = int(unpublished.argmax())
                rows, whole, end, stopped = rows[:count], whole[:count], begin + count, True
            self.lost_slots += int(np.count_nonzero(~whole))
        primary = whole & self._plausible(rows)
        for at in np.flatnonzero(primary & (rows["n_extra"] > 0)):
            if not primary[at]:
                continue  # the continuation of an earlier one
            extra = int(rows["n_extra"][at])
            primary[at + 1 : at + 1 + extra] = False
            if at + extra >= len(rows):
                # The tail lies behind the wrap: it was published before its head, and is skipped by moving on.
                end = begin + int(at) + 1 + extra
            self.extras[int(rows["ticket"][at])] = self._continuation(begin + int(at) + 1, extra)
        self._next = end
        return rows if primary.all() else pick(rows, primary), stopped

    def _continuation(self, first: int, count: int) -> NDArray[Any]:
        slots = self._raw[np.arange(first, first + count) % len(self._slots)]
        return np.ascontiguousarray(slots).view(self._values_code).reshape(count, -1)[:, 1:].ravel()
