"""Who launched what: the numbers of the operations that each rank has launched, per group and point-to-point pair.

    rows of a rank -> Ledger.add -> missing(call)   ranks that have not launched an operation
                                 -> disputes        operations in which two ranks passed different things
                                 -> shifts()        ranks whose steps begin at another operation than the others'

Adding is idempotent and works on arrays: a row that is still open comes again with every poll. A dispute needs two
launches with different fingerprints, so it can't come from reading one rank before the other. A rank that is not in
the ledger (another host's, or not started yet) is never called missing.

Shifts find what no fingerprint shows. If a rank leaves out one of four equal all-reduces, all of its later calls pair
with the wrong ones of the others, and nothing fails. But its next step begins one operation earlier than the others',
and so do all steps after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranksight.hooks.records import Collective, Group

Ints = NDArray[np.int64]

P2P = frozenset({"send", "recv", "recv_any_source"})
_WINDOW = 2048  # operations by which one rank may be ahead of another and still be compared
_STEPS = 64  # step boundaries kept per rank and group
_DISPUTES = 8  # per group, of the first and of the newest


class Key(NamedTuple):
    """One operation of one group, or of one pair of ranks in it (src and dst are global ranks)."""

    group: str
    incarnation: int
    seq: int
    src: int = -1
    dst: int = -1
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """`rank` launched `extra` operations more (fewer, when negative) than its peers in the step before `step`."""

    group: Group
    rank: int
    extra: int
    step: int  # the first that begins at another operation than the others'
    since_ns: int  # when the rank launched that operation
    confirmed: int  # later steps that show the same


class _Begin(NamedTuple):
    seq: int
    enqueue_ns: int


@dataclass(slots=True)
class _Run:
    extra: int
    step: int
    since_ns: int
    confirmed: int = 0


@dataclass(slots=True)
class _GroupLedger:
    group: Group
    next_seq: dict[int, int] = field(default_factory=dict)
    last_step: dict[int, int] = field(default_factory=dict)
    ref_seq: Ints = field(default_factory=lambda: np.full(_WINDOW, -1, np.int64))
    ref_mark: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(_WINDOW, np.uint64))
    begins: dict[int, dict[int, _Begin]] = field(default_factory=dict)  # rank -> step -> first operation
    compared: int = -2  # last step whose beginnings were compared
    usual: dict[int, int] | None = None  # rank -> difference that was there from the start
    runs: dict[int, _Run] = field(default_factory=dict)
    helpers: bool = False  # threads of their own use this group, so steps say nothing


class Ledger:
    """Mutable while it is fed; detectors only read it."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], _GroupLedger] = {}
        self._pairs: dict[tuple[str, int, int, int, int], list[int]] = {}  # -> [sends, receives] launched
        self.disputes: dict[Key, None] = {}

    @classmethod
    def of(cls, calls: Iterable[Collective]) -> Ledger:
        """A ledger of calls given as records, in the order of their launches on each rank."""
        ledger = cls()
        batches: dict[tuple[int, Group], list[Collective]] = {}
        for call in calls:
            if call.op in P2P:
                key = key_of(call)
                ledger.add_pair(call.group, key.src, key.dst, key.tag, key.seq, sent=call.op == "send")
            else:
                batches.setdefault((call.rank, call.group), []).append(call)
        for (rank, group), batch in batches.items():
            ledger.add(
                rank,
                group,
                np.array([call.group_seq for call in batch], np.int64),
                np.array([call.fingerprint for call in batch], np.uint64),
                np.array([call.step for call in batch], np.int64),
                np.array([call.enqueue_ns for call in batch], np.int64),
            )
        return ledger

    def add(
        self,
        rank: int,
        group: Group,
        seq: Ints,
        mark: NDArray[np.uint64],
        step: Ints,
        enqueue_ns: Ints,
        helpers: bool = False,
    ) -> None:
        """Collectives that `rank` launched in `group`, ascending in `seq`; `mark` is the fingerprint, 0 for none.

        `helpers`: some come from threads other than the training loop's.
        """
        if not len(seq):
            return
        entry = self._groups.setdefault((group.name, group.incarnation), _GroupLedger(group))
        if group.ranks and not entry.group.ranks:
            entry.group = group
        entry.helpers |= helpers
        before = entry.next_seq.get(rank, 0)
        entry.next_seq[rank] = max(before, int(seq[-1]) + 1)
        self._compare_marks(entry, seq, mark)
        new = seq >= before
        if new.any():
            _note_begins(entry, rank, seq[new], step[new], enqueue_ns[new], before)

    def add_pair(self, group: Group, src: int, dst: int, tag: int, seq: int, *, sent: bool) -> None:
        """A send (or a receive) from `src` to `dst` was launched; `seq` counts them per side, -1 is an unknown rank."""
        counts = self._pairs.setdefault((group.name, group.incarnation, src, dst, tag), [0, 0])
        side = 0 if sent else 1
        counts[side] = max(counts[side], seq + 1)

    def group(self, key: Key) -> Group | None:
        """The group that an operation belongs to, as the best informed rank knows it."""
        entry = self._groups.get((key.group, key.incarnation))
        return entry.group if entry else None

    def members(self, call: Collective) -> tuple[int, ...]:
        """The global ranks that take part in an operation; empty while they are unknown."""
        if call.op in P2P:
            key = key_of(call)
            return () if -1 in (key.src, key.dst) else (key.src, key.dst)
        return (self.group(key_of(call)) or call.group).ranks or call.group.ranks

    def launched(self, key: Key, rank: int) -> bool:
        """Whether `rank` has launched the operation."""
        if key.src >= 0 or key.dst >= 0:
            sends, receives = self._pairs.get((key.group, key.incarnation, key.src, key.dst, key.tag), (0, 0))
            return (sends if rank == key.src else receives) > key.seq
        entry = self._groups.get((key.group, key.incarnation))
        return entry is not None and entry.next_seq.get(rank, 0) > key.seq

    def count(self, group: Group, rank: int) -> int:
        """Collectives that `rank` has launched in `group`."""
        entry = self._groups.get((group.name, group.incarnation))
        return entry.next_seq.get(rank, 0) if entry else 0

    def missing(self, call: Collective, ranks: Iterable[int]) -> tuple[int, ...]:
        """Which of the observed `ranks` take part in an operation and have not launched it."""
        key, members = key_of(call), set(self.members(call))
        return tuple(sorted(rank for rank in ranks if rank in members and not self.launched(key, rank)))

    def shifts(self) -> tuple[Shift, ...]:
        """Ranks that are out of step in a group by now; see `Shift.confirmed` for how sure that is."""
        found = []
        for entry in self._groups.values():
            if entry.helpers or entry.group.size < 2:
                continue
            _compare_begins(entry)
            found += [
                Shift(entry.group, rank, run.extra, run.step, run.since_ns, run.confirmed)
                for rank, run in sorted(entry.runs.items())
            ]
        return tuple(found)

    def _dispute(self, key: Key) -> None:
        """Keep the first disputes of a group, of which the later ones are consequences, and the newest, in case not."""
        same = [other for other in self.disputes if other[:2] == key[:2]]
        if key not in self.disputes and len(same) >= 2 * _DISPUTES:
            del self.disputes[same[_DISPUTES]]
        self.disputes[key] = None

    def _compare_marks(self, entry: _GroupLedger, seq: Ints, mark: NDArray[np.uint64]) -> None:
        seq, mark = seq[mark > 0][-_WINDOW:], mark[mark > 0][-_WINDOW:]
        at = seq % _WINDOW
        known = entry.ref_seq[at] == seq
        for number in seq[known & (entry.ref_mark[at] != mark)].tolist():
            self._dispute(Key(entry.group.name, entry.group.incarnation, number))
        fresh = entry.ref_seq[at] < seq
        entry.ref_seq[at[fresh]], entry.ref_mark[at[fresh]] = seq[fresh], mark[fresh]


def key_of(call: Collective) -> Key:
    """The operation that a rank's call belongs to."""
    group = call.group
    if call.op not in P2P:
        return Key(group.name, group.incarnation, call.group_seq)
    peer = group.ranks[call.peer] if 0 <= call.peer < len(group.ranks) else -1
    src, dst = (call.rank, peer) if call.op == "send" else (peer, call.rank)
    return Key(group.name, group.incarnation, call.group_seq, src, dst, call.tag)


def _note_begins(entry: _GroupLedger, rank: int, seq: Ints, step: Ints, enqueue_ns: Ints, expected: int) -> None:
    """Note where steps begin, but only where the operation before was seen too: a gap hides a beginning."""
    begins = entry.begins.setdefault(rank, {})
    previous_step = np.concatenate(([entry.last_step.get(rank, np.iinfo(np.int64).min)], step[:-1]))
    previous_seq = np.concatenate(([expected - 1], seq[:-1]))
    for at in np.flatnonzero((step != previous_step) & (seq == previous_seq + 1)).tolist():
        begins.setdefault(int(step[at]), _Begin(int(seq[at]), int(enqueue_ns[at])))
    entry.last_step[rank] = int(step[-1])
    while len(begins) > _STEPS:
        del begins[next(iter(begins))]


def _compare_begins(entry: _GroupLedger) -> None:
    members = [rank for rank in entry.group.ranks or entry.begins if rank in entry.begins]
    if len(members) < 2:
        return
    first, *others = (entry.begins[rank] for rank in members)
    new = [step for step in first if step > entry.compared and all(step in begins for begins in others)]
    for step in sorted(new):
        entry.compared = step
        begins = {rank: entry.begins[rank][step].seq for rank in members}
        if len(set(begins.values())) == 1 and not entry.runs and entry.usual is not None and not any(entry.usual.values()):
            continue
        middle = _reference(entry, members, step)
        differences = {rank: begins[rank] - middle for rank in members}
        if entry.usual is None or entry.usual.keys() != differences.keys():
            entry.usual = differences
            continue
        for rank in members:
            extra = differences[rank] - entry.usual[rank]
            run = entry.runs.get(rank)
            if not extra:
                entry.runs.pop(rank, None)
            elif run is not None and run.extra == extra:
                run.confirmed += 1
            elif extra in _lengths(entry.begins[rank], step)[-2:-1]:
                # A whole step more: this rank's count of steps fell behind by one, say as its optimizer left one out.
                entry.usual = entry.usual | {rank: differences[rank]}
            else:
                entry.runs[rank] = _Run(extra, step, entry.begins[rank][step].enqueue_ns)


def _reference(entry: _GroupLedger, members: list[int], step: int) -> int:
    """Where the step begins for most; with no majority, for those that were right until now and kept their usual length."""
    counts = Counter(entry.begins[rank][step].seq for rank in members).most_common(2)
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        for rank in members:
            lengths = _lengths(entry.begins[rank], step)
            if rank not in entry.runs and (entry.runs or (len(lengths) > 1 and lengths[-1] == lengths[-2])):
                return entry.begins[rank][step].seq
    return counts[0][0]


def _lengths(begins: dict[int, _Begin], until: int) -> list[int]:
    """Operations in each step before `until`."""
    numbers = [begins[step].seq for step in sorted(begins) if step <= until]
    return [after - before for before, after in pairwise(numbers)]
