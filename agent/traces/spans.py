"""A step as OpenTelemetry spans: StepView -> Spans.of -> finished spans of the SDK, ready for any exporter.

    step 120                      on the host of the lowest rank, so that there is one
      rank 0                      what came in (batch), what came out (loss, gradient norm, checksums), its coordinates
        forward, backward, ...    phases; data, gc, checkpoint
        pipeline forward          pipeline actions, with stage and microbatch
        all_reduce                operations; *linked* to the one that they waited for: links, not parents, because
                                  what holds up and what is held up belong to different ranks
      rank 1 ...

Trace and span ids are hashes of what the span is about, so agents of different hosts write to one trace, and link to
spans of another's, without talking. Attributes follow the vocabulary of NVIDIA's Lens (`dl.*`), which is what there is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from ranksight.agent.export.trace_id import trace_id
from ranksight.agent.traces.view import P2P, Operation, Span, StepView

Attributes = dict[str, Any]

AXES = {"dp": "data", "tp": "tensor", "pp": "pipeline", "ep": "expert", "cp": "context", "fsdp": "data"}
SPAN_KINDS = frozenset({"phase", "pipeline", "checkpoint", "data", "gc"})
_BATCH = ("samples", "tokens", "cursor", "fingerprint")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Where a rank stands in the job: `axes` holds (its rank, size) by axis, `partition` the members by axis."""

    world_size: int
    local_rank: int
    axes: Mapping[str, tuple[int, int]]
    partition: Mapping[str, Sequence[int]]


class _Ids(IdGenerator):
    """Gives the ids that were set for the next span."""

    trace = span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Finished(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def span_id(run_id: str, step: int, *about: object) -> int:
    """The 64-bit id of a span by what it is about; equal on every host, never 0."""
    return int.from_bytes(hashlib.sha256(repr((run_id, step, about)).encode()).digest()[:8], "big") or 1


class Spans:
    """Makes spans for the ranks of one host. Not for several threads."""

    def __init__(self, run_id: str, resource: Mapping[str, str]) -> None:
        self._run_id = run_id
        self._ids, self._finished = _Ids(), _Finished()
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # the steps were chosen already, whatever the environment says
            resource=Resource.create(dict(resource)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._finished)
        self._tracer = provider.get_tracer("ranksight")

    def of(self, view: StepView, facts: Mapping[int, RankFacts], reason: str) -> list[ReadableSpan]:
        """All spans of a step, children before their parents' siblings; `reason` says why it was kept."""
        self._finished.spans = []
        self._ids.trace = int(trace_id(self._run_id, view.step), 16)
        root = self._context(view.step, "step")
        whole = tuple(span for span in view.spans if span.kind == "step") or view.records
        begin, end = min(item.begin_ns for item in whole), max(item.end_ns or view.end_ns for item in whole)
        if view.ranks[0] == 0:
            about = {"dl.iteration": view.step, "ranksight.kept_because": reason, "nemo.run.id": self._run_id}
            self._span("startup" if view.step < 0 else f"step {view.step}", root, None, begin, end, about)
        links = self._links(view)
        for rank in view.ranks:
            self._rank(view, rank, facts.get(rank), root, (begin, end), links)
        return self._finished.spans

    def _rank(
        self, view: StepView, rank: int, facts: RankFacts | None, root: SpanContext, whole: tuple[int, int],
        links: Mapping[int, list[Link]],
    ) -> None:  # fmt: skip
        own = self._context(view.step, "rank", rank)
        base: Attributes = {"dl.rank": rank, "dl.iteration": view.step}
        spans = [span for span in view.spans if span.rank == rank]
        moments = [span for span in view.moments if span.rank == rank]
        mine = next((span for span in spans if span.kind == "step"), None)
        begin, end = (mine.begin_ns, mine.end_ns or whole[1]) if mine else whole
        host = next(item.host for item in view.records if item.rank == rank)
        about = base | {"host.name": host} | _coordinates(facts) | _said(moments)
        self._span(f"rank {rank}", own, root, begin, end, about)
        for number, span in enumerate(span for span in spans if span.kind in SPAN_KINDS):
            name, said = _named(span, facts)
            context = self._context(view.step, rank, span.kind, span.begin_ns, number)
            self._span(name, context, own, span.begin_ns, span.end_ns or end, base | said)
        for number, operation in enumerate(view.operations):
            if operation.rank == rank:
                context = self._of_operation(view.step, rank, operation)
                unfinished = operation.end_ns is None
                self._span(
                    operation.op, context, own, operation.begin_ns, operation.end_ns or max(view.end_ns, operation.begin_ns),
                    base | _operation(operation), links.get(number, ()), unfinished=unfinished,
                )  # fmt: skip

    def _links(self, view: StepView) -> dict[int, list[Link]]:
        """Links of each operation to what held it up; the send of another host is linked to by its id alone."""
        links: dict[int, list[Link]] = {}
        matched = set()
        for cause in view.causes:
            source = view.operations[cause.source]
            kind = "message" if cause.kind == "p2p" else "waited_for"
            context = self._of_operation(view.step, source.rank, source)
            links.setdefault(cause.target, []).append(Link(context, {"dl.link": kind, "dl.rank": source.rank}))
            matched.add(cause.target)
        here = set(view.ranks)
        for number, operation in enumerate(view.operations):
            far = operation.peer is not None and operation.peer not in here
            if operation.op in P2P - {"send"} and number not in matched and far:
                context = self._of_operation(view.step, operation.peer or 0, operation)
                links[number] = [Link(context, {"dl.link": "message", "dl.rank": operation.peer or 0})]
        return links

    def _of_operation(self, step: int, rank: int, operation: Operation) -> SpanContext:
        return self._context(step, rank, operation.instance)

    def _context(self, step: int, *about: object) -> SpanContext:
        number = span_id(self._run_id, step, *about)
        return SpanContext(self._ids.trace, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def _span(
        self, name: str, context: SpanContext, parent: SpanContext | None, begin: int, end: int, attributes: Attributes,
        links: Sequence[Link] = (), *, unfinished: bool = False,
    ) -> None:  # fmt: skip
        self._ids.span = context.span_id
        around = Context() if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())
        known = {key: value for key, value in attributes.items() if value is not None}
        span = self._tracer.start_span(name, around, attributes=known, links=links, start_time=begin)
        if unfinished:
            span.set_status(Status(StatusCode.ERROR, "never completed"))
        span.end(max(begin, end))


def _coordinates(facts: RankFacts | None) -> Attributes:
    if facts is None:
        return {}
    said: Attributes = {"dl.world_size": facts.world_size, "dl.local_rank": facts.local_rank}
    for axis, (own, size) in facts.axes.items():
        name = f"{AXES[axis]}_parallel" if axis in AXES else axis
        said |= {f"dl.{name}.rank": own, f"dl.{name}.size": size}
    return said


def _said(moments: Sequence[Span]) -> Attributes:
    """What went into the step and what came out of it."""
    said: Attributes = {}
    for moment in moments:
        if moment.kind == "loss" and moment.values:
            said["dl.loss"] = moment.values[0]
        elif moment.kind == "grad_norm" and moment.values:
            said["dl.grad_norm"] = moment.values[0]
        elif moment.kind == "batch":
            said |= {f"dl.batch.{name}": int(value) for name, value in zip(_BATCH, moment.values, strict=False)}
        elif moment.kind == "checksum" and len(moment.values) == 2:
            low, high = (int(value) for value in moment.values)
            said.setdefault("dl.checksum", []).append(f"{moment.code}.{moment.layer}:{high << 32 | low:016x}")
        elif moment.kind == "exception":
            said["exception.message"] = moment.text
    return said


def _named(span: Span, facts: RankFacts | None) -> tuple[str, Attributes]:
    said: Attributes = {"dl.microbatch_id": span.microbatch, "dl.pipeline_parallel.stage": span.stage}
    if span.kind == "pipeline":
        return f"pipeline {span.what}", said
    if span.kind == "phase":
        if span.what == "partition" and facts:
            said |= {f"dl.partition.{axis}": list(ranks) for axis, ranks in facts.partition.items()}
        return span.what or "other", said
    if span.kind == "checkpoint":
        said |= {"dl.checkpoint.path": span.text, "dl.checkpoint.bytes": int(span.values[1]) if span.values[1:] else None}
    return span.kind, said | ({"dl.gc.generation": span.code} if span.kind == "gc" else {})


def _operation(operation: Operation) -> Attributes:
    return {
        "dl.process_group": operation.group, "dl.collective.axis": operation.axis, "dl.collective.op": operation.op,
        "dl.collective.seq": operation.seq, "dl.collective.bytes": operation.bytes, "dl.collective.dtype": operation.dtype,
        "dl.collective.peer": operation.peer, "dl.microbatch_id": operation.microbatch,
        "dl.pipeline_parallel.stage": operation.stage, "dl.phase": operation.phase, "dl.call_site": operation.call_site,
    }  # fmt: skip
