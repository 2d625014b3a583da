"""From the rings of this host to `JobFacts`, poll by poll: what the detectors of stopping ranks look at.

    RingReader rows of every rank -> Witness.see    -> ledger, the rows that may still be needed
    headers, /proc states         -> Witness.facts  -> JobFacts, or None while nothing can be wrong

Most polls find a job that moves. Then no record is built: a few comparisons show that no operation is older than a
second, all hearts beat, and the ledger has nothing to object to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ranksight.agent.reading.reader import RingReader, phase_name
from ranksight.agent.reading.slots import COLLECTIVE, Rows, pick, stack
from ranksight.agent.stopped.facts import JobFacts, RankFacts
from ranksight.agent.stopped.ledger import Ledger
from ranksight.hooks import wire
from ranksight.hooks.records import Collective, Group

YOUNG_NS = 1_000_000_000  # operations in flight for less are nobody's business
FEED_NS = 1_000_000_000  # rows go into the ledger in batches of a second: the cost is per batch, not per row
QUIET_NS = 1_500_000_000  # a heart that has beaten since then beats
KEPT_ROWS = 4096  # settled operations per rank that can still be shown in evidence
KEPT_FAILED = 64
KEPT_UNWAITED = 256  # operations without a future that nobody has waited for yet, the newest
KEPT_STEPS = 512  # step durations, of all ranks together
MIN_STEPS = 8

_P2P = np.zeros(1 << 16, bool)
_P2P[list(wire.P2P_OPS)] = True
_SEND = wire.OP_CODES["send"]
_LIVES: dict[int, str] = {life: life.name.lower() for life in wire.Life}
_FAILED, _NO_COMPLETION = int(wire.CollectiveFlag.FAILED), int(wire.CollectiveFlag.NO_COMPLETION)


class Source(Protocol):
    """What the observer knows of one ring: its reader, and the state letter of its process, None when it is gone."""

    reader: RingReader
    state: str | None


@dataclass(slots=True)
class _Rank:
    """What is kept of one process."""

    reader: RingReader
    new: list[Rows] = field(default_factory=list)  # settled, not yet in the ledger
    recent: deque[Rows] = field(default_factory=deque)
    recent_rows: int = 0
    failed: Rows = field(default_factory=lambda: np.empty(0, COLLECTIVE))
    unwaited: Rows = field(default_factory=lambda: np.empty(0, COLLECTIVE))
    error_ns: int | None = None
    gone_ns: int | None = None
    stopped_since_ns: int | None = None


class Witness:
    """Facts about the newest set of ranks; a restart begins anew."""

    def __init__(self, host: str = "") -> None:
        self.host = host
        self.ledger = Ledger()
        self.generation = -1
        self.epoch = 0  # counts the sets of ranks that were seen after each other
        self.stopping_since_ns: int | None = None
        self._ranks: dict[int, _Rank] = {}
        self._past: set[int] = set()  # readers of ranks that were followed by others
        self._fed_ns = 0
        self._steps: deque[float] = deque(maxlen=KEPT_STEPS)

    def see(self, reader: RingReader, settled: Rows, events: Rows) -> None:
        """Take in what one poll of one ring found; call it for every ring, after its poll."""
        rank, generation = reader["rank"], reader["generation"]
        if rank < 0 or generation < self.generation or id(reader) in self._past:
            return
        kept = self._ranks.get(rank)
        if generation > self.generation or (kept is not None and kept.reader is not reader):
            # A restart, or another job of the same script: numbers of operations and of steps begin anew.
            self.generation, self.epoch, self.ledger = generation, self.epoch + 1, Ledger()
            self._past |= {id(old.reader) for old in self._ranks.values()}
            self._ranks.clear()
            self._steps.clear()
            kept = None
        if kept is None:
            kept = self._ranks[rank] = _Rank(reader)
        if len(events):
            self._see_events(kept, events)
        if len(settled):
            _keep(kept, settled)
        if len(kept.unwaited):
            fresh, alive = reader.collectives.again(kept.unwaited)
            kept.unwaited = pick(fresh, alive & (fresh["wait_end_ns"] == 0))

    def facts(self, sources: Iterable[Source], now_ns: int, look: Callable[[], None] = lambda: None) -> JobFacts | None:
        """The facts of now; None when nothing in them could interest a detector.

        `look` brings the states of the sources up to date; it is called when something is wrong, so that a rank that
        has just died is not taken for a rank that is late.
        """
        known = list(sources)
        self._note_states(known, now_ns)
        quiet = self._quiet(now_ns)
        if quiet and not self.ledger.disputes and now_ns - self._fed_ns < FEED_NS:
            return None
        if not quiet:
            look()
            self._note_states(known, now_ns)
        states = {id(source.reader): source.state for source in known}
        self._fed_ns = now_ns
        for rank, kept in self._ranks.items():
            rows = [part for part in (*kept.new, kept.reader.open_rows) if len(part)]
            kept.new.clear()
            if rows:
                self._feed(rank, kept.reader, stack(rows))
        shifted = self.ledger.shifts()
        if quiet and not shifted and not self.ledger.disputes:
            return None
        ranks = {rank: self._rank_facts(rank, kept, states, now_ns) for rank, kept in self._ranks.items()}
        # Where operations are only sampled, one that is not recorded may still have been launched.
        whole = all(kept.reader["detail"] == wire.Detail.FULL and kept.reader["tap"] for kept in self._ranks.values())
        steps = {(shift.group.name, shift.group.incarnation): shift.step - 1 for shift in shifted}
        return JobFacts(
            now_ns=now_ns,
            world_size=max(kept.reader["world_size"] for kept in self._ranks.values()),
            ranks=ranks,
            calls=tuple(self._calls(now_ns, steps)) if whole else (),
            ledger=self.ledger,
            p99_step_seconds=self._p99(),
            epoch=self.epoch,
            stopping_since_ns=self.stopping_since_ns,
        )

    def _note_states(self, sources: list[Source], now_ns: int) -> None:
        states = {id(source.reader): source.state for source in sources}
        for kept in self._ranks.values():
            state = states.get(id(kept.reader))
            if state is None and kept.gone_ns is None:
                kept.gone_ns = now_ns
            if state not in {"T", "t"}:
                kept.stopped_since_ns = None
            elif kept.stopped_since_ns is None:
                kept.stopped_since_ns = now_ns

    def _quiet(self, now_ns: int) -> bool:
        for kept in self._ranks.values():
            reader = kept.reader
            beats = [beat for beat in (reader["python_heartbeat_ns"], reader["native_heartbeat_ns"]) if beat]
            if kept.gone_ns is not None or kept.stopped_since_ns is not None or reader["life"] != wire.Life.RUNNING:
                return False
            if beats and min(beats) < now_ns - QUIET_NS:
                return False
            if len(kept.failed) or len(_in_flight(reader.open_rows, now_ns)) or len(_held_up(kept.unwaited)):
                return False
        return True

    def _see_events(self, kept: _Rank, events: Rows) -> None:
        kinds = events["kind"]
        steps = pick(events, kinds == wire.EventKind.STEP)
        if len(steps):
            seconds = (steps["end_ns"] - steps["begin_ns"]) / 1e9
            # The first steps build kernels and say nothing about the others.
            self._steps.extend(seconds[(steps["step"] >= 2) & (seconds > 0)].tolist())
        if kept.error_ns is None:
            errors = events["begin_ns"][kinds == wire.EventKind.EXCEPTION]
            kept.error_ns = int(errors[0]) if len(errors) else None

    def _feed(self, rank: int, reader: RingReader, rows: Rows) -> None:
        paired = _P2P[rows["op"]]
        if paired.any():
            self._feed_pairs(rank, reader, pick(rows, paired))
            rows = pick(rows, ~paired)
        numbers = rows["group"]
        for number in np.unique(numbers).tolist():
            if not 0 < number <= len(reader.groups):
                continue
            mine = pick(rows, numbers == number)
            mine = pick(mine, np.argsort(mine["group_seq"], kind="stable"))
            loop = (mine["thread"] == reader["pid"]) | (mine["phase"] == wire.Phase.BACKWARD)
            self.ledger.add(
                rank,
                reader.groups[number - 1],
                mine["group_seq"].astype(np.int64),
                mine["fingerprint"],
                mine["step"],
                mine["enqueue_ns"],
                helpers=not bool(loop.all()),
            )

    def _feed_pairs(self, rank: int, reader: RingReader, rows: Rows) -> None:
        last: dict[tuple[int, int, int, int], int] = {}
        columns = (rows[name].tolist() for name in ("group", "op", "peer", "tag", "group_seq"))
        for group, op, peer, tag, seq in zip(*columns, strict=True):
            pair = (group, op, peer, tag)
            last[pair] = max(last.get(pair, -1), seq)
        for (number, op, peer, tag), seq in last.items():
            if 0 < number <= len(reader.groups):
                other = _global(reader.groups[number - 1], peer)
                src, dst = (rank, other) if op == _SEND else (other, rank)
                self.ledger.add_pair(reader.groups[number - 1], src, dst, tag, seq, sent=op == _SEND)

    def _rank_facts(self, rank: int, kept: _Rank, states: Mapping[int, str | None], now_ns: int) -> RankFacts:
        reader = kept.reader
        state = states.get(id(reader))
        return RankFacts(
            rank=rank,
            observed_ns=now_ns,
            host=self.host,
            pid=reader["pid"],
            alive=state is not None,
            process_state=state,
            life=_LIVES.get(reader["life"], "running"),
            last_error=reader.hooks_table.string(reader["last_error"]),
            error_ns=kept.error_ns,
            gone_ns=kept.gone_ns,
            step=reader["step"],
            phase=phase_name(reader["phase"]),
            phase_begin_ns=reader["phase_begin_ns"] or None,
            python_heartbeat_ns=reader["python_heartbeat_ns"] or None,
            native_heartbeat_ns=reader["native_heartbeat_ns"] or None,
            stopped_since_ns=kept.stopped_since_ns,
        )

    def _calls(self, now_ns: int, steps: Mapping[tuple[str, int], int]) -> list[Collective]:
        """In flight and failed, disputed with those right after them, and those of the steps where a shift began."""
        wanted = {(key.group, key.incarnation, seq) for key in self.ledger.disputes for seq in (key.seq, key.seq + 1)}
        calls: dict[tuple[int, int], Collective] = {}
        for kept in self._ranks.values():
            parts = [kept.failed, _in_flight(kept.reader.open_rows, now_ns), _held_up(kept.unwaited)]
            if wanted or steps:
                parts += [_find(kept, rows, wanted, steps) for rows in (*kept.recent, kept.reader.open_rows)]
            for rows in parts:
                for row in rows:
                    if 0 < row["group"] <= len(kept.reader.groups):
                        calls.setdefault((kept.reader["rank"], int(row["ticket"])), kept.reader.record(row))
        return list(calls.values())

    def _p99(self) -> float | None:
        return float(np.percentile(list(self._steps), 99)) if len(self._steps) >= MIN_STEPS else None


def _in_flight(rows: Rows, now_ns: int) -> Rows:
    """Operations that have not completed and are old enough to matter."""
    if not len(rows):
        return rows
    young = rows["enqueue_ns"] >= now_ns - YOUNG_NS
    return pick(rows, (rows["complete_ns"] == 0) & ~young)


def _held_up(rows: Rows) -> Rows:
    """Of operations that were launched long ago, those that a caller waits for by now."""
    return pick(rows, (rows["wait_begin_ns"] > 0) & (rows["wait_end_ns"] == 0)) if len(rows) else rows


def _keep(kept: _Rank, settled: Rows) -> None:
    kept.new.append(settled)
    kept.recent.append(settled)
    kept.recent_rows += len(settled)
    while len(kept.recent) > 1 and kept.recent_rows - len(kept.recent[0]) >= KEPT_ROWS:
        kept.recent_rows -= len(kept.recent.popleft())
    flags = settled["flags"]
    unwaited = ((flags & _NO_COMPLETION) != 0) & (settled["wait_end_ns"] == 0)
    if unwaited.any():
        kept.unwaited = stack([part for part in (kept.unwaited, pick(settled, unwaited)) if len(part)])[-KEPT_UNWAITED:]
    failed = (flags & _FAILED) != 0
    if failed.any():
        kept.failed = stack([part for part in (kept.failed, pick(settled, failed)) if len(part)])[:KEPT_FAILED]


def _find(
    kept: _Rank, rows: Rows, wanted: set[tuple[str, int, int]], steps: Mapping[tuple[str, int], int]
) -> Rows:
    """The rows of these operations, and those of these steps of a group."""
    found = np.zeros(len(rows), bool)
    for number, group in enumerate(kept.reader.groups, 1):
        numbers = [seq for name, incarnation, seq in wanted if (name, incarnation) == (group.name, group.incarnation)]
        step = steps.get((group.name, group.incarnation))
        if numbers or step is not None:
            mine = (rows["group"] == number) & ~_P2P[rows["op"]]
            found |= mine & (np.isin(rows["group_seq"], numbers) | (step is not None and rows["step"] == step))
    return pick(rows, found)


def _global(group: Group, peer: int) -> int:
    return group.ranks[peer] if 0 <= peer < len(group.ranks) else -1
