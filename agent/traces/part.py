"""Traces of training steps: holds the records of the last steps until it is known whether they are worth keeping.

    add -> records of unfinished steps -> roll: all ranks have left the step HOLD_NS ago -> Sampler, Budget -> Sender

Off without an endpoint. A finding makes the steps that it speaks of faulty as far as they are still held; a step in
which a rank hangs is decided at the end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter

from ranksight.agent.archive.rows import Converter, Extras
from ranksight.agent.catalog import BY_NAME
from ranksight.agent.config import TracesSection
from ranksight.agent.export.exposition import Block
from ranksight.agent.findings import Finding
from ranksight.agent.parts import Part, Surroundings
from ranksight.agent.reading.slots import EVENT, Rows, pick
from ranksight.agent.traces.sampling import Budget, Sampler
from ranksight.agent.traces.sender import FATES, REQUEST_SECONDS, Parcel, Sender
from ranksight.agent.traces.spans import SPAN_KINDS, RankFacts, Spans
from ranksight.hooks import wire

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

HOLD_NS = 2_000_000_000  # the time that a detector has to find a step faulty
LOOK_NS = 500_000_000
STARTUP = -1  # the records before the first step are one "step" of their own
_SPANS = [int(wire.EventKind[kind.upper()]) for kind in SPAN_KINDS]
_OF_THE_START = [int(wire.Phase.STARTUP), int(wire.Phase.PARTITION)]
_NO_EVENTS = np.empty(0, EVENT)

Held = tuple["Source", Rows, Rows, Extras]


class Traces(Part):
    """Sends kept steps of this host's ranks. `exporter` makes what sends them; tests give their own."""

    def __init__(
        self, surroundings: Surroundings, exporter: Callable[[TracesSection], SpanExporter] | None = None
    ) -> None:
        settings = surroundings.config.traces
        self._host = socket.gethostname()
        resource = {"service.name": settings.service_name, "host.name": self._host, "nemo.run.id": surroundings.run_id}
        if job := os.environ.get("SLURM_JOB_ID"):
            resource["slurm.job.id"] = job
        self._offsets = {self._host: time.time_ns() - time.monotonic_ns()}
        self._sender = Sender((exporter or _otlp)(settings), Spans(surroundings.run_id, resource))
        self._sampler, self._budget = Sampler(settings.every, settings.slow_factor), Budget(settings.spans_per_second)
        self._converter: Converter | None = None
        self._held: list[Held] = []
        self._decided = STARTUP - 1
        self._left_ns: dict[int, int] = {}  # step -> when all ranks were seen to have left it
        self._looked_ns = 0

    def add(self, source: Source, batch: Batch) -> None:
        """See Part.add."""
        if len(batch.collectives) or len(batch.events):
            self._held.append((source, batch.collectives, batch.events, batch.event_extras))

    def roll(self, observer: Observer, now_ns: int) -> None:
        """See Part.roll."""
        if now_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns
        left = _left_by_all(observer)
        for step in range(max(self._decided, max(self._left_ns, default=STARTUP - 1)) + 1, left + 1):
            self._left_ns[step] = now_ns
        due = [step for step, since in self._left_ns.items() if now_ns - since >= HOLD_NS]
        # What belongs to the start may be written while the first step is already the current one.
        if due and max(due) > STARTUP:
            self._decide(observer, max(due), now_ns)

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """See Part.blocks."""
        fates = self._sender.fates
        yield Block(BY_NAME["ranksight_trace_spans_total"], [(fate,) for fate in FATES], [fates[fate] for fate in FATES])

    def close(self, observer: Observer, now_ns: int) -> None:
        """See Part.close."""
        for source in observer.sources.values():
            if source.rank >= 0 and len(source.reader.open_rows):
                self._held.append((source, source.reader.open_rows, _NO_EVENTS, {}))
        last = max((source.reader["step"] for source in observer.current()), default=STARTUP)
        self._decide(observer, last, now_ns)
        self._sender.close()

    def _decide(self, observer: Observer, until: int, now_ns: int) -> None:
        """Decide all steps up to one, send what is kept of them and let go of their records."""
        converter = self._converter = self._converter or Converter(self._host, observer.registry)
        faults = [finding for finding in observer.faults() if finding.severity.order > 0]
        seconds = self._step_seconds()
        facts: dict[int, RankFacts] = {}
        for step in range(self._decided + 1, until + 1):
            reason = self._reason(step, seconds.get(step), faults)
            if reason is None:
                continue
            facts = facts or rank_facts(observer)
            collectives = [(held[0], pick(held[1], held[1]["step"] == step)) for held in self._held]
            events = [(held[0], _events_of(held[2], step), held[3]) for held in self._held]
            spans = _count(collectives, events)
            if not self._budget.take(spans, now_ns):
                self._sender.count("dropped_budget", spans)
                continue
            tables = (converter.collectives(collectives), converter.events(events)) if self._held else None
            if tables is not None:
                self._sender.put(Parcel(step, reason, *tables, spans, facts, self._offsets))
        self._decided = until
        self._left_ns = {step: since for step, since in self._left_ns.items() if step > until}
        self._let_go(until)

    def _reason(self, step: int, seconds: float | None, faults: Iterable[Finding]) -> str | None:
        if step == STARTUP:
            return "every"
        faulty = any(
            finding.first_step is not None and finding.first_step <= step <= (finding.last_step or finding.first_step)
            for finding in faults
        )
        return self._sampler.reason(step, seconds, faulty=faulty)

    def _step_seconds(self) -> dict[int, float]:
        """The longest that a rank took for each step."""
        seconds: dict[int, float] = {}
        for _, _, events, _ in self._held:
            rows = events[events["kind"] == wire.EventKind.STEP]
            for step, took in zip(rows["step"].tolist(), ((rows["end_ns"] - rows["begin_ns"]) / 1e9).tolist(), strict=True):
                seconds[step] = max(took, seconds.get(step, 0.0))
        return seconds

    def _let_go(self, until: int) -> None:
        kept: list[Held] = []
        for source, operations, said, extras in self._held:
            collectives = pick(operations, operations["step"] > until)
            events = pick(said, said["step"] > until)
            if len(collectives) or len(events):
                kept.append((source, collectives, events, extras if len(events) else {}))
        self._held = kept


def rank_facts(observer: Observer) -> dict[int, RankFacts]:
    """Coordinates of the ranks of this host, from the groups that they are members of."""
    found = {}
    for source in observer.current():
        groups = {group.axis: group for group in source.reader.groups if source.rank in group.ranks}
        axes = {axis: (group.ranks.index(source.rank), group.size) for axis, group in groups.items() if axis != "world"}
        partition = {axis: group.ranks for axis, group in groups.items()}
        identity = source.reader.identity
        found[source.rank] = RankFacts(identity.world_size, identity.local_rank, axes, partition)
    return found


def _left_by_all(observer: Observer) -> int:
    """The last step in which no rank is and no operation of any rank is open."""
    limits = []
    for source in observer.current():
        open_rows = source.reader.open_rows
        current = source.reader["step"]
        limits.append(min(current, int(open_rows["step"].min())) if len(open_rows) else current)
    return min(limits, default=STARTUP) - 1


def _count(collectives: list[tuple[Source, Rows]], events: list[tuple[Source, Rows, Extras]]) -> int:
    """Spans that `Spans.of` will make of these records."""
    ranks = {source.rank for source, rows in collectives if len(rows)}
    ranks |= {source.rank for source, rows, _ in events if len(rows)}
    of_events = sum(int(np.isin(rows["kind"], _SPANS).sum()) for _, rows, _ in events)
    return sum(len(rows) for _, rows in collectives) + of_events + len(ranks) + (0 in ranks)


def _events_of(events: Rows, step: int) -> Rows:
    if step != STARTUP:
        return pick(events, events["step"] == step)
    # Nobody wants each garbage collection of the imports.
    phases = events["kind"] == wire.EventKind.PHASE
    chosen = pick(events, phases & ((events["step"] == STARTUP) | np.isin(events["code"], _OF_THE_START))).copy()
    chosen["step"] = STARTUP  # a trainer that says its first step has it as the current one from then on
    return chosen


def _otlp(settings: TracesSection) -> SpanExporter:
    return OTLPSpanExporter(
        endpoint=settings.endpoint, headers=dict(settings.headers), timeout=REQUEST_SECONDS, compression=Compression.Gzip
    )
