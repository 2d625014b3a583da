"""Everything the agent knows about the ranks of one host, brought up to date by `poll`. No loop, no thread.

    ring folder -> RingReader per process -> facts -> Series (counters, histograms, tails)
                                          |        -> Timeline.join -> measures.split -> Series (wait, transfer, blame)
                                          -> events -> Steps
                                          -> parts           everything that stands for itself (see `parts`)
    poll()             read all rings once; called twice a second, and when a ring is filling
    final()            last poll, after the ranks are gone
    metrics()          prometheus_client families; `exposition` renders the same much faster
    report_sections()  the parts of report.json that come from the rings
    findings()         ranks that stop or disagree, and what is wrong with the observation itself

A ring that can't be read is named in `unreadable` and left alone. Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from prometheus_client.core import Metric

from ranksight.agent.collectives import measures
from ranksight.agent.collectives.series import Series
from ranksight.agent.collectives.timeline import FACT, Facts, InFlight, Joined, Timeline, facts_of
from ranksight.agent.detectors.completeness import CompletenessFacts, RankCompleteness, incomplete_data
from ranksight.agent.detectors.origins import Birth
from ranksight.agent.detectors.replicas import Replicas
from ranksight.agent.export import exposition
from ranksight.agent.findings import Finding
from ranksight.agent.parts import Parts, Surroundings
from ranksight.agent.reading.groups import GroupRegistry
from ranksight.agent.reading.reader import Batch, Counts, RingError, RingReader, process_state
from ranksight.agent.reading.slots import Rows, stack
from ranksight.agent.report import sections
from ranksight.agent.steps.diagnosis import StepDiagnosis, unexplained
from ranksight.agent.steps.host import HostWatch
from ranksight.agent.steps.rank_steps import RankSteps, Steps
from ranksight.agent.steps.table import StepTable
from ranksight.agent.stopped.diagnosis import Diagnosis
from ranksight.agent.stopped.stacks import Asker
from ranksight.agent.stopped.witness import Witness
from ranksight.hooks import wire
from ranksight.hooks.records import RankIdentity
from ranksight.hooks.ring import SUFFIX, fallback_directory

log = logging.getLogger(__name__)

LIVENESS_INTERVAL_NS = 1_000_000_000
FULL_SHARE = 0.1  # of a ring; the rest is for what is written until the poll gets to it
FAR_NS = 1 << 62  # later than any clock: what waits for its time is due
_CHECKSUM, _ORIGIN = int(wire.EventKind.CHECKSUM), int(wire.EventKind.ORIGIN)
_ASYNC, _UPPER_BOUND = int(wire.CollectiveFlag.ASYNC), int(wire.CollectiveFlag.UPPER_BOUND)


@dataclass(slots=True)
class Source:
    """One ring file and what its process was last seen doing; `state` is the letter of /proc, None when it is gone."""

    number: int
    reader: RingReader
    state: str | None = "R"
    released: bool = False
    groups: list[int] = field(default_factory=list)  # registry numbers by the ring's own group number

    @property
    def rank(self) -> int:
        """Global rank, -1 while unknown."""
        return self.reader["rank"]


class Observer:
    """Reads the rings in `ring_dir`; the folder may appear later. `clock_ns`, `proc`, `stacks_of`: the outside world."""

    def __init__(
        self,
        ring_dir: Path,
        *,
        run_id: str | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        proc: Path = Path("/proc"),
        surroundings: Surroundings | None = None,
        stacks_of: Asker | None = None,
    ) -> None:
        self.ring_dir, self.run_id = ring_dir, run_id or ring_dir.name
        self._clock_ns, self._proc = clock_ns, proc
        self.sources: dict[str, Source] = {}
        self.unreadable: dict[str, str] = {}
        self.registry = GroupRegistry()
        self.timeline = Timeline(self.registry)
        around = surroundings or Surroundings(self.run_id)
        traces = around.config.traces
        kept_every = traces.every if traces.endpoint else 1
        self.series, self.steps = Series(kept_every), Steps(kept_every)
        self.witness = Witness(socket.gethostname())
        self.stops = Diagnosis(asker=stacks_of)
        self.step_table = StepTable()
        self.slowdowns = StepDiagnosis()
        self.replicas = Replicas()
        self.desync: Finding | None = None  # the first one: what follows from it is the same fault
        self.host = HostWatch(proc)
        self.poll_seconds = 0.0  # CPU spent in poll
        self.polls = 0
        self._local_world: dict[int, int | None] = {}
        self._axes: list[str] = []
        self._axis_numbers: dict[str, int] = {}
        self._axis_of = np.zeros(0, np.int64)
        self._axes_for = -1
        self._looked_ns = 0
        self._renderer = exposition.Renderer(self)
        self.parts = Parts(around)

    def poll(self) -> None:
        """Read every ring once."""
        self._poll(final=False)

    def filling(self) -> bool:
        """Whether some ring should be read before its time, lest it overwrites records."""
        return any(source.reader.backlog > FULL_SHARE for source in self.sources.values() if not source.released)

    def final(self) -> None:
        """Last read, when no rank writes any more: what was left half written is given up and counted."""
        self._poll(final=True)

    def metrics(self) -> Iterable[Metric]:
        """All metrics as families, for a prometheus_client registry."""
        return exposition.families(self)

    @property
    def exposition_seconds(self) -> float:
        """CPU seconds spent in `exposition`."""
        return self._renderer.cpu_seconds

    def now_ns(self) -> int:
        """The observer's clock, CLOCK_MONOTONIC of this host."""
        return self._clock_ns()

    def exposition(self, openmetrics: bool = False) -> tuple[bytes, str]:
        """All metrics as text with its content type; the fast path of `metrics`. OpenMetrics carries exemplars."""
        return self._renderer.render(openmetrics)

    def report_sections(self) -> dict[str, object]:
        """The keys completeness, collectives, steps, overhead and ranks of report.json, and those of the parts."""
        return sections.of(self) | self.parts.sections(self)

    def layout(self) -> dict[str, object]:
        """The partition of the job as its ranks said it: ranks, process groups by axis, and facts about the data."""
        ranks = [asdict(identity) for identity in self.identities()]
        groups = [
            {"name": known.group.name, "axis": known.group.axis, "size": known.group.size, "ranks": known.group.ranks}
            for known in self.registry.groups[1:]
        ]
        facts: dict[str, str] = {}
        for rank in sorted(self.steps.ranks):
            facts |= self.steps.ranks[rank].facts
        return {"layout": {"ranks": ranks, "groups": groups}, "facts": facts}

    def findings(self) -> tuple[Finding, ...]:
        """Faults of the job, and of the observation itself."""
        return (*self.faults(), *incomplete_data(self.completeness()))

    def faults(self) -> tuple[Finding, ...]:
        """Findings about ranks that stop or disagree, and about steps; cheap enough to ask for after every poll."""
        desync = (self.desync,) if self.desync else ()
        return unexplained((*self.stops.findings, *desync, *self.slowdowns.findings, *self.parts.findings()))

    def stopping(self) -> None:
        """The job was asked to end: ranks that end from now on are no fault."""
        if self.witness.stopping_since_ns is None:
            self.witness.stopping_since_ns = self._clock_ns()

    def identities(self) -> list[RankIdentity]:
        """Every process seen that knows its rank, ordered by generation and rank."""
        known = [source.reader.identity for source in self.sources.values() if source.rank >= 0]
        return sorted(known, key=lambda identity: (identity.generation, identity.rank))

    def current(self) -> list[Source]:
        """The newest process of each rank, ordered by rank."""
        newest: dict[int, Source] = {}
        for source in self.sources.values():
            known = newest.get(source.rank)
            if source.rank >= 0 and (known is None or _age(known) <= _age(source)):
                newest[source.rank] = source
        return [newest[rank] for rank in sorted(newest)]

    def group_members(self) -> Iterator[tuple[int, int, int, float]]:
        """(group number, rank, collectives launched, seconds in its operations) of every group and ring."""
        ranks = [source.rank for source in self.sources.values()]
        launched, seconds = self.timeline.launched, self.timeline.seconds
        for group, source in np.argwhere((launched > 0) | (seconds > 0)).tolist():
            yield group, ranks[source], int(launched[group, source]), float(seconds[group, source])

    def total(self, rank: int, *fields: str) -> int:
        """Sum of header fields over all processes that this rank has had."""
        return sum(source.reader[name] for source in self.sources.values() if source.rank == rank for name in fields)

    def in_flight(self) -> list[InFlight]:
        """Operations that some rank has launched and not completed, oldest first."""
        return self.timeline.in_flight(self._open_facts())

    def steps_of(self, rank: int) -> RankSteps:
        """Step facts of one rank."""
        return self.steps.ranks.get(rank, RankSteps())

    def ranks_expected(self) -> int | None:
        """Ranks that should be on this host in the newest generation; None when nobody says."""
        current = self.current()
        if not current:
            return None
        generation = max(source.reader["generation"] for source in current)
        local = self._local_world.get(generation)
        world = max(source.reader["world_size"] for source in current)
        seen = sum(source.reader["generation"] == generation for source in current)
        return local or (world if seen == world else None)

    def completeness(self) -> CompletenessFacts:
        """What was seen of what there was to see."""
        expected = self.ranks_expected()
        seen = {source.rank for source in self.current()}
        silent = sorted(self._expected_ranks() - seen)
        ranks = []
        for rank in sorted(seen):
            mine = [source for source in self.sources.values() if source.rank == rank]
            newest = max(mine, key=_age).reader
            ranks.append(
                RankCompleteness(
                    rank=rank,
                    tap=newest.identity.tap,
                    collectives=_sum(source.reader.counts("collectives") for source in mine),
                    events=_sum(source.reader.counts("events") for source in mine),
                    skipped=self.total(rank, "collectives_skipped"),
                    late_completions=self.total(rank, "late_completions"),
                    errors=self.total(rank, "tap_errors", "hooks_errors"),
                    notes=tuple(self.steps_of(rank).notes),
                )
            )
        return CompletenessFacts(
            expected,
            tuple(ranks),
            tuple(silent),
            dict(self.unreadable),
            self.timeline.incomplete,
            self.timeline.partial,
        )

    def _poll(self, final: bool) -> None:
        begin = time.thread_time()
        now_ns = self._clock_ns()
        self._discover()
        if final or now_ns - self._looked_ns >= LIVENESS_INTERVAL_NS:
            self._looked_ns = now_ns
            self._look()
            self._find_host()
            looked = True
        else:
            looked = False
        found: list[tuple[Source, Rows]] = []
        left_open: list[tuple[Source, Rows]] = []
        for source in self.sources.values():
            if source.released:
                continue
            # Looked at before the last read, so that nothing a dying process wrote is missed.
            last = final or source.state is None
            batch = source.reader.poll(now_ns, final=last)
            if len(batch.events):
                self.steps.add(source.rank, source.reader, batch.events)
            self.witness.see(source.reader, batch.collectives, batch.events)
            self._add_steps(source, batch, now_ns if not last else FAR_NS)
            self._add_checksums(source, batch.events)
            self._add_births(source, batch.events)
            if source.rank >= 0:
                self.parts.add(source, batch)
            self._number_groups(source)
            if len(batch.collectives):
                found.append((source, batch.collectives))
            if last:
                source.reader.release()
                source.released = True
                self.timeline.ended.add(source.number)
                if len(source.reader.open_rows):
                    left_open.append((source, source.reader.open_rows))
        self._refresh_axes()
        if found:
            self._add(found, now_ns)
        if left_open:
            self._count(left_open, now_ns)
        if looked:
            self._sweep(now_ns)
        self.series.roll(now_ns)
        self.steps.count(now_ns)
        facts = self.witness.facts(self.current(), now_ns, self._look)
        if facts is not None:
            self.stops.update(facts)
        self.host.look(now_ns)
        stages = {source.rank: source.reader["stage"] for source in self.current() if source.reader["stage"] >= 0}
        self.step_table.set_stages(stages)
        self.slowdowns.update(self.step_table, stages, self.host, self._pools(), now_ns, final=final)
        self.parts.roll(self, now_ns)
        if final:
            self.parts.close(self, now_ns)
        self.polls += 1
        self.poll_seconds += time.thread_time() - begin

    def _add_steps(self, source: Source, batch: Batch, now_ns: int) -> None:
        reader = source.reader
        if source.rank < 0:
            return
        open_step = int(reader.open_rows["step"].min()) if len(reader.open_rows) else None
        self.step_table.add_rank(
            source.rank, self.witness.host, reader["generation"], batch.collectives, batch.events, reader.groups,
            open_step, reader["step"], now_ns,
        )  # fmt: skip

    def _look(self) -> None:
        """Ask /proc what the processes are doing."""
        for source in self.sources.values():
            if not source.released:
                identity = source.reader.identity
                source.state = process_state(identity.pid, identity.start_ticks, self._proc)

    def _pools(self) -> list[int]:
        """Threads that each rank computes with, as far as the ranks have said."""
        said = [self.steps_of(source.rank).facts.get("intra_op_threads", "") for source in self.current()]
        return [int(text) for text in said if text.isdigit()]

    def _add_checksums(self, source: Source, events: Rows) -> None:
        if source.rank < 0 or not len(events):
            return
        said = np.flatnonzero(events["kind"] == _CHECKSUM).tolist()
        ranks = len(self.current()) if said else 0
        for at in said:
            row = events[at]
            value = (float(row["values"][0]), float(row["values"][1]))
            where = int(row["code"]), int(row["layer"]), int(row["step"])
            finding = self.replicas.add(source.rank, *where, value, ranks)
            if finding is not None and self.desync is None:
                self.desync = finding

    def _add_births(self, source: Source, events: Rows) -> None:
        if source.rank < 0 or not len(events):
            return
        for at in np.flatnonzero(events["kind"] == _ORIGIN).tolist():
            seen = source.reader.event(events[at], {})
            self.step_table.add_birth(
                Birth(
                    source.rank, self.witness.host, seen.step, seen.begin_ns, wire.Origin(seen.code),
                    seen.name or "a module", seen.layer, seen.microbatch, seen.stage,
                )
            )  # fmt: skip

    def _discover(self) -> None:
        for folder in (self.ring_dir, fallback_directory(self.ring_dir)):
            try:
                names = [path.name for path in folder.iterdir()]
            except FileNotFoundError:
                continue
            for name in sorted(names):
                if name.endswith(SUFFIX) and name not in self.sources and name not in self.unreadable:
                    self._open(folder / name)

    def _open(self, path: Path) -> None:
        try:
            self.sources[path.name] = Source(len(self.sources), RingReader(path))
        except RingError as error:
            log.warning("ring skipped: %s", error)
            self.unreadable[path.name] = str(error)

    def _find_host(self) -> None:
        """Learn which ranks belong to this host, from the ranks themselves and from the launcher's LOCAL_WORLD_SIZE."""
        by_generation: dict[int, list[Source]] = {}
        for source in self.sources.values():
            if source.rank >= 0:
                by_generation.setdefault(source.reader["generation"], []).append(source)
                self.timeline.sources[source.reader["generation"], source.rank] = source.number
        for generation, sources in by_generation.items():
            if self._local_world.get(generation) is None:
                self._local_world[generation] = _local_world_size(sources[0].reader["pid"], self._proc)
            ranks = {source.rank for source in sources}
            count, local_rank = self._local_world[generation], sources[0].reader["local_rank"]
            if count is not None and local_rank >= 0:
                base = sources[0].rank - local_rank
                ranks |= set(range(base, base + count))
            world = max(source.reader["world_size"] for source in sources)
            self.registry.set_host(generation, frozenset(ranks), world)

    def _expected_ranks(self) -> set[int]:
        if not self.registry.local_ranks:
            return set()
        return set(self.registry.local_ranks[max(self.registry.local_ranks)])

    def _number_groups(self, source: Source) -> None:
        groups = source.reader.groups
        if len(source.groups) != len(groups) + 1 or source.reader.groups_changed:
            if source.reader["generation"] not in self.registry.local_ranks:
                self._find_host()
            generation = source.reader["generation"]
            source.groups = [0, *(self.registry.number(generation, group) for group in groups)]
            source.reader.groups_changed = False

    def _refresh_axes(self) -> None:
        if self._axes_for == self.registry.changes:
            return
        self._axes_for = self.registry.changes
        for known in self.registry.groups:
            if known.group.axis not in self._axis_numbers:
                self._axis_numbers[known.group.axis] = len(self._axes)
                self._axes.append(known.group.axis)
        self._axis_of = np.array([self._axis_numbers[known.group.axis] for known in self.registry.groups])

    def _facts(self, found: list[tuple[Source, Rows]]) -> tuple[Rows, Facts]:
        rows = stack([rows for _, rows in found])
        counts = [len(rows) for _, rows in found]
        source = np.repeat([source.number for source, _ in found], counts)
        rank = np.repeat([source.rank for source, _ in found], counts)
        # One table of group numbers and own ranks for all rings, each at its offset.
        tables = [source.groups for source, _ in found]
        own = [[-1, *source.reader.group_ranks] for source, _ in found]
        offsets = np.cumsum([0, *(len(table) for table in tables[:-1])])
        limit = np.repeat([len(table) - 1 for table in tables], counts)
        place = np.repeat(offsets, counts) + np.minimum(rows["group"], limit)
        return rows, facts_of(rows, source, rank, np.concatenate(tables)[place], np.concatenate(own)[place])

    def _add(self, found: list[tuple[Source, Rows]], now_ns: int) -> None:
        facts = self._count(found, now_ns)
        self._add_joined(self.timeline.join(facts), now_ns)

    def _count(self, found: list[tuple[Source, Rows]], now_ns: int) -> Facts:
        """Count operations, each once: when it is settled, or as unfinished when its process is gone."""
        rows, facts = self._facts(found)
        ranks = [source.rank for source in self.sources.values()]
        series = self.series.rows(
            facts["source"], ranks, self._axis_of[facts["group"]], self._axes, facts["op"], rows["bytes"]
        )
        facts["series"] = series
        duration = measures.duration(facts["enter"], facts["exit"])
        exposed = measures.exposed(
            facts["enter"], rows["return_ns"], rows["wait_begin_ns"], rows["wait_end_ns"], facts["exit"],
            (facts["flags"] & _ASYNC) != 0,
        )  # fmt: skip
        upper_bound = (facts["flags"] & _UPPER_BOUND) != 0
        self.series.add_operations(
            series, facts["bytes"].astype(float), duration, exposed, upper_bound, facts["step"], facts["exit"], now_ns
        )
        self.timeline.note_launched(facts)
        self.timeline.note_seconds(facts, duration)
        return facts

    def _add_joined(self, joined: Joined, now_ns: int) -> None:
        facts, starts = joined.facts, joined.starts
        if not len(starts):
            return
        split = measures.split(facts["enter"], facts["exit"], starts)
        rows = facts["series"].astype(np.int64)
        self.parts.add_joined(joined, split)
        self.step_table.add_joined(facts["step"][starts].astype(np.int64), split.transfer)
        self.series.add_waits(rows, split.wait, facts["step"], facts["exit"], now_ns)
        sizes = np.diff(starts, append=len(facts))
        self.series.add_instances(
            rows[split.last], split.blame, split.skew, split.transfer,
            np.maximum.reduceat(facts["bytes"], starts).astype(float),
            measures.bus_factors(facts["op"][starts], sizes), now_ns,
        )  # fmt: skip

    def _open_facts(self) -> Facts:
        found = [(source, source.reader.open_rows) for source in self.sources.values() if len(source.reader.open_rows)]
        return self._facts(found)[1] if found else np.empty(0, FACT)

    def _sweep(self, now_ns: int) -> None:
        facts = self._open_facts()
        self.timeline.note_launched(facts)
        self.timeline.sweep(now_ns, facts)


def _age(source: Source) -> tuple[int, int]:
    return source.reader["generation"], source.reader["created_monotonic_ns"]


def _sum(counts: Iterable[Counts]) -> Counts:
    found = list(counts)
    return Counts(
        sum(count.written for count in found),
        sum(count.captured for count in found),
        sum(count.dropped for count in found),
    )


def _local_world_size(pid: int, proc: Path) -> int | None:
    """LOCAL_WORLD_SIZE as the launcher gave it to a rank; None when it did not, or the process is gone."""
    try:
        environ = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(b"LOCAL_WORLD_SIZE="):
            value = entry.partition(b"=")[2]
            return int(value) if value.isdigit() else None
    return None
