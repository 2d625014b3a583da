"""Joining what the ranks of one host say about the same operation.

    rows of all rings -> facts -> Timeline.join -> instances all of whose members are here
                                     | pool        (their facts lie behind each other, `starts` says where)
                                     v
                        waits for members that are still to come

Collectives are joined by (generation, group name, incarnation, member ranks, sequence), point-to-point operations by
(group, source, destination, tag, sequence). An instance of which a member's record was dropped is *incomplete*: it is
counted and left out of every measure that needs all members. The same holds for an instance with members on other
hosts (*partial*), of which only durations are known here. The pool is bounded; facts that leave it unjoined are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranksight.agent.reading.groups import GroupRegistry
from ranksight.agent.reading.slots import Rows, pick, stack
from ranksight.hooks import wire

MAX_POOL = 1 << 16
P2P_PATIENCE_NS = 60_000_000_000  # a matched pair of one channel is rarely further apart
ABSENT_PATIENCE_NS = 10_000_000_000  # for members whose ring has not appeared yet

_LANE_BITS = 21
_LANES = (1 << 2 * _LANE_BITS) - 1
_NOBODY = (1 << _LANE_BITS) - 1
_IS_P2P = np.zeros(1 << 16, bool)
_IS_P2P[list(wire.P2P_OPS)] = True
_FAILED, _NO_COMPLETION = int(wire.CollectiveFlag.FAILED), int(wire.CollectiveFlag.NO_COMPLETION)
_SEND = wire.OP_CODES["send"]

FACT = np.dtype(
    [
        ("key", "i8"),  # group number and, for P2P, source and destination
        ("tag", "i4"),
        ("seq", "i8"),
        ("group", "i4"),  # number in the GroupRegistry
        ("source", "i4"),  # number of the ring
        ("rank", "i4"),
        ("op", "u2"),
        ("flags", "u2"),
        ("series", "i4"),
        ("enter", "i8"),
        ("exit", "i8"),  # 0 when it is not known, or the operation failed
        ("bytes", "i8"),
        ("step", "i8"),
        ("unwatched", "?"),  # nothing would tell if it were complete
    ],
    align=True,
)
Facts = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Joined:
    """Facts of whole instances, ordered by instance; `starts` holds the first of each."""

    facts: Facts
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InFlight:
    """One operation that is not complete on some rank: who launched it, and which members here did not."""

    group: int
    op: str
    seq: int
    launched: tuple[int, ...]
    not_launched: tuple[int, ...]
    since_ns: int


def facts_of(
    rows: Rows,
    source: NDArray[np.int64],
    rank: NDArray[np.int64],
    group: NDArray[np.int64],
    group_rank: NDArray[np.int64],
    series: NDArray[np.int64] | int = 0,
) -> Facts:
    """Facts of collective rows, one per row, with who said it and the host's number of its group."""
    facts = np.empty(len(rows), FACT)
    p2p = _IS_P2P[rows["op"]]
    lane = np.full(len(rows), _LANES, np.int64)
    if p2p.any():
        peer = np.where(rows["peer"] < 0, _NOBODY, rows["peer"]).astype(np.int64)
        sends = rows["op"] == _SEND
        pair = np.where(sends, group_rank, peer) << _LANE_BITS | np.where(sends, peer, group_rank)
        lane = np.where(p2p, pair, lane)
    facts["key"] = group << 2 * _LANE_BITS | lane
    facts["tag"] = np.where(p2p, rows["tag"], 0)
    facts["seq"] = rows["group_seq"]
    facts["group"], facts["source"], facts["rank"], facts["series"] = group, source, rank, series
    for name in ("op", "flags", "bytes", "step"):
        facts[name] = rows[name]
    facts["enter"] = rows["enqueue_ns"]
    facts["exit"] = np.where(rows["flags"] & _FAILED, 0, rows["complete_ns"])
    facts["unwatched"] = ((rows["flags"] & _NO_COMPLETION) != 0) & (rows["wait_begin_ns"] == 0)
    return facts


class Timeline:
    """Joins facts poll by poll. Counters say what could not be joined."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._pool: Facts = np.empty(0, FACT)
        self.sources: dict[tuple[int, int], int] = {}  # (generation, rank) -> number of its ring
        self.ended: set[int] = set()  # rings that were read to their end
        # Per group and ring. Point-to-point operations have sequences of their own and do not count as launched.
        self.launched = np.zeros((0, 0), np.int64)
        self.seconds = np.zeros((0, 0))
        self._swept_ns = 0
        self._known = (-1, np.empty(0, np.int64), np.empty(0, np.int64))
        self._pairs: dict[int, int] = {}
        self.incomplete = 0  # instances given up because a member's record is missing
        self.partial = 0  # instances with members on other hosts

    @property
    def waiting(self) -> int:
        """Facts that wait for other members of their instance."""
        return len(self._pool)

    def note_launched(self, facts: Facts) -> None:
        """Take note of operations as soon as they are seen, complete or not."""
        self._make_room(int(facts["group"].max(initial=0)), int(facts["source"].max(initial=0)))
        collectives = (facts["key"] & _LANES) == _LANES
        places = facts["group"].astype(np.int64) * self.launched.shape[1] + facts["source"]
        np.maximum.at(self.launched.reshape(-1), places[collectives], facts["seq"][collectives] + 1)

    def note_seconds(self, facts: Facts, duration: NDArray[np.float64]) -> None:
        """Add the known durations of settled operations to the time spent in their groups."""
        places = facts["group"].astype(np.int64) * self.launched.shape[1] + facts["source"]
        self.seconds += np.bincount(
            places, weights=np.nan_to_num(duration), minlength=self.seconds.size
        ).reshape(self.seconds.shape)  # fmt: skip

    def launched_by(self, group: int, rank: int) -> int:
        """Collectives that a rank has launched in a group, as far as its ring was read."""
        source = self.sources.get((self._registry.groups[group].generation, rank))
        if source is None or group >= self.launched.shape[0] or source >= self.launched.shape[1]:
            return 0
        return int(self.launched[group, source])

    def join(self, facts: Facts) -> Joined:
        """Add settled facts and take out the instances that are whole now."""
        pool = stack((self._pool, facts)) if len(self._pool) else facts
        if not len(pool):
            return Joined(pool, np.empty(0, np.int64))
        pool = pick(pool, np.lexsort((pool["seq"], pool["tag"], pool["key"])))
        key, tag, seq = pool["key"], pool["tag"], pool["seq"]
        new = np.ones(len(pool), bool)
        new[1:] = (key[1:] != key[:-1]) | (seq[1:] != seq[:-1]) | (tag[1:] != tag[:-1])
        starts = np.flatnonzero(new)
        counts = np.diff(starts, append=len(pool))
        needed, size = self._needed(pool[starts])
        here = counts >= needed
        whole = here & (needed >= size)
        ended = np.minimum.reduceat(pool["exit"], starts) > 0
        self.partial += int(np.count_nonzero(here & ~whole))
        self.incomplete += int(np.count_nonzero(whole & ~ended))
        self._pool = pick(pool, np.repeat(~here, counts))
        done = whole & ended
        sizes = counts[done]
        return Joined(pick(pool, np.repeat(done, counts)), np.cumsum(sizes) - sizes)

    def sweep(self, now_ns: int, open_facts: Facts) -> None:
        """Give up instances that can't become whole; at most once a second, the work grows with what is waiting."""
        if not len(self._pool) or now_ns - self._swept_ns < 1_000_000_000:
            return
        self._swept_ns = now_ns
        pool = self._pool
        keep = np.ones(len(pool), bool)
        p2p = (pool["key"] & _LANES) != _LANES
        keep[p2p] = pool["exit"][p2p] > now_ns - P2P_PATIENCE_NS
        for group in np.unique(pool["group"][~p2p]).tolist():
            mine = np.flatnonzero((pool["group"] == group) & ~p2p)
            keep[mine] = self._still_possible(group, pool[mine], now_ns, open_facts)
        if np.count_nonzero(keep) > MAX_POOL:
            oldest_kept = np.sort(pool["enter"][keep])[-MAX_POOL]
            keep &= pool["enter"] >= oldest_kept
        given_up = pool[~keep]
        self.incomplete += len(np.unique(given_up[["key", "tag", "seq"]]))
        self._pool = pool[keep]

    def in_flight(self, open_facts: Facts) -> list[InFlight]:
        """Operations that are open on some rank, oldest first."""
        found: dict[tuple[int, int, int], list[np.void]] = {}
        for fact in open_facts[(open_facts["exit"] == 0) & ~open_facts["unwatched"]]:
            found.setdefault((int(fact["key"]), int(fact["tag"]), int(fact["seq"])), []).append(fact)
        result = []
        for (key, _, seq), facts in found.items():
            group = int(facts[0]["group"])
            launched = {int(fact["rank"]) for fact in facts}
            members: tuple[int, ...] = ()
            if key & _LANES == _LANES:
                members = self._registry.groups[group].local or ()
                launched |= {rank for rank in members if self.launched_by(group, rank) > seq}
            missing = tuple(rank for rank in members if rank not in launched)
            op = wire.OP_NAMES[int(facts[0]["op"])]
            since = min(int(fact["enter"]) for fact in facts)
            result.append(InFlight(group, op, seq, tuple(sorted(launched)), missing, since))
        return sorted(result, key=lambda operation: operation.since_ns)

    def _make_room(self, group: int, source: int) -> None:
        groups, sources = self.launched.shape
        if group < groups and source < sources:
            return
        room = ((0, max(group + 1, 2 * groups) - groups), (0, max(source + 1, sources) - sources))
        self.launched, self.seconds = np.pad(self.launched, room), np.pad(self.seconds, room)

    def _needed(self, firsts: Facts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Members that must be here, and members in all, of the instances with these first facts."""
        if self._known[0] != self._registry.changes:
            self._known = (self._registry.changes, self._registry.expected(), self._registry.sizes())
            self._pairs.clear()
        _, expected, sizes = self._known
        needed, size = np.maximum(expected[firsts["group"]], 1), sizes[firsts["group"]]
        p2p = np.flatnonzero((firsts["key"] & _LANES) != _LANES)
        if len(p2p):
            needed[p2p], size[p2p] = [self._pair(key) for key in firsts["key"][p2p].tolist()], 2
        return needed, size

    def _pair(self, key: int) -> int:
        """How many ends of a point-to-point operation are on this host."""
        if key not in self._pairs:
            self._pairs[key] = self._local_ends(key)
        return self._pairs[key]

    def _local_ends(self, key: int) -> int:
        source, destination = key >> _LANE_BITS & _NOBODY, key & _NOBODY
        if _NOBODY in (source, destination):
            return 1  # from any source: nothing says who sent it
        known = self._registry.groups[key >> 2 * _LANE_BITS]
        if known.local is None:
            return 2 if known.whole else 1
        ranks = known.group.ranks
        return sum(end < len(ranks) and ranks[end] in known.local for end in (source, destination)) or 1

    def _still_possible(self, group: int, facts: Facts, now_ns: int, open_facts: Facts) -> NDArray[np.bool_]:
        """Tell for each fact of one group whether the missing members of its instance may still come."""
        known = self._registry.groups[group]
        if known.local is None:
            return np.asarray(facts["exit"] > now_ns - P2P_PATIENCE_NS)
        members = np.array(known.local)
        opened = open_facts[(open_facts["group"] == group) & ((open_facts["key"] & _LANES) == _LANES)]
        # Every collective of a member below its limit is settled: what is not in the pool was dropped.
        limits = np.zeros(len(members), np.int64)
        absent = np.zeros(len(members), bool)
        for at, rank in enumerate(known.local):
            source = self.sources.get((known.generation, rank))
            absent[at] = source is None
            own = opened["seq"][opened["source"] == (-1 if source is None else source)]
            limits[at] = own.min() if len(own) else self.launched_by(group, rank)
            if source in self.ended:
                limits[at] = np.iinfo(np.int64).max
        seqs, where = np.unique(facts["seq"], return_inverse=True)
        present = np.zeros((len(seqs), len(members)), bool)
        present[where, np.searchsorted(members, facts["rank"])] = True
        old = np.zeros(len(seqs), bool)
        np.logical_or.at(old, where, (facts["exit"] > 0) & (facts["exit"] < now_ns - ABSENT_PATIENCE_NS))
        never = present | (limits > seqs[:, None]) | absent & old[:, None]
        possible = np.asarray(~never.all(axis=1))
        return possible[where]
