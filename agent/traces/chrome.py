"""A step as a Chrome trace, which Perfetto, chrome://tracing and Speedscope open. Pure: StepView -> JSON object.

    a process per rank    tracks: step, phases, data and pauses, pipeline, collectives by axis
    flow arrows           send -> receive, last to arrive -> those that waited for it; they end in a slice "transfer"
                          within the operation, from when it waited no more: Perfetto turns arrows around that lead to
                          a slice which began earlier
    counters              tokens per expert of each layer; bubble: idle milliseconds of the pipeline so far

Slices of one track must lie behind or within each other; what overlaps otherwise goes to a second track of that name.
Times are microseconds since the first record of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ranksight.agent.traces.view import Operation, Span, StepView

Event = dict[str, Any]

TRACKS = {"step": "step", "phase": "phases", "data": "data and pauses", "gc": "data and pauses", "checkpoint": "data and pauses",
          "pipeline": "pipeline"}  # fmt: skip
_ORDER = ("step", "phases", "data and pauses", "pipeline")
MAX_EXPERTS = 16  # counters of one layer, the rest is one more
_COMPUTE = frozenset({"forward", "backward", "input_grad", "weight_grad"})


def chrome(view: StepView, run_id: str) -> dict[str, Any]:
    """The whole trace; `view` must hold something."""
    origin = view.begin_ns
    events: list[Event] = []
    flow_ends: dict[int, tuple[int, int]] = {}  # operation -> (rank, track)
    numbers = {id(operation): number for number, operation in enumerate(view.operations)}
    for rank in view.ranks:
        events += _process(rank, view)
        tracks: dict[str, list[Span | Operation]] = {name: [] for name in _ORDER}
        for span in view.spans:
            if span.rank == rank and span.kind in TRACKS:
                tracks[TRACKS[span.kind]].append(span)
        for operation in view.operations:
            if operation.rank == rank:
                tracks.setdefault(f"collectives {operation.axis}", []).append(operation)
        thread = 0
        for name, items in tracks.items():
            for lane, members in enumerate(_lanes(items, view.end_ns)):
                thread += 1
                events += _track(rank, thread, name if lane == 0 else f"{name} ({lane + 1})")
                for item in members:
                    events.append(_slice(item, rank, thread, origin, view.end_ns))
                    if isinstance(item, Operation):
                        flow_ends[numbers[id(item)]] = rank, thread
    events += _flows(view, flow_ends, origin)
    events += _expert_counters(view, origin)
    for rank in view.ranks:
        events += _bubble(view, rank, origin)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run_id": run_id, "step": view.step, "begin_unix_ns": origin},
    }


def _process(rank: int, view: StepView) -> Iterator[Event]:
    mine = [item for item in view.records if item.rank == rank]
    said = [f"stage {stage}" for stage in sorted({item.stage for item in mine if item.stage is not None})]
    said += sorted({item.host for item in mine})
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_labels", "pid": rank, "args": {"labels": ", ".join(said)}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}


def _track(rank: int, thread: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": thread, "args": {"sort_index": thread}}


def _lanes(items: Sequence[Span | Operation], latest_ns: int) -> list[list[Span | Operation]]:
    """Distribute slices over as few tracks as they need to lie behind or within each other."""
    lanes: list[list[Span | Operation]] = []
    open_ends: list[list[int]] = []  # of the slices around the next one, by lane
    for item in sorted(items, key=lambda item: (item.begin_ns, -(item.end_ns or latest_ns))):
        end = item.end_ns or latest_ns
        for lane, ends in zip(lanes, open_ends, strict=True):
            while ends and ends[-1] <= item.begin_ns:
                ends.pop()
            if not ends or ends[-1] >= end:
                lane.append(item)
                ends.append(end)
                break
        else:
            lanes.append([item])
            open_ends.append([end])
    return lanes


def _slice(item: Span | Operation, rank: int, thread: int, origin: int, latest_ns: int) -> Event:
    end = item.end_ns or latest_ns
    if isinstance(item, Operation):
        name = item.op
        said = {
            "group": item.group, "members": list(item.members), "seq": item.seq, "bytes": item.bytes, "dtype": item.dtype,
            "peer": item.peer, "call_site": item.call_site, "phase": item.phase, "unfinished": item.end_ns is None or None,
        }  # fmt: skip
    else:
        name = {"step": "step", "phase": item.what, "pipeline": item.what}.get(item.kind) or item.kind
        if item.kind == "pipeline" and item.microbatch is not None:
            name = f"{name} {item.microbatch}"
        said = {"text": item.text, "generation": item.code if item.kind == "gc" else None}
    said |= {"microbatch": item.microbatch, "stage": item.stage}
    return {
        "ph": "X", "name": name, "cat": item.kind if isinstance(item, Span) else "collective", "pid": rank, "tid": thread,
        "ts": _us(item.begin_ns - origin), "dur": _us(max(0, end - item.begin_ns)),
        "args": {key: value for key, value in said.items() if value is not None},
    }  # fmt: skip


def _flows(view: StepView, ends: dict[int, tuple[int, int]], origin: int) -> Iterator[Event]:
    for number, cause in enumerate(view.causes, 1):
        source, target = view.operations[cause.source], view.operations[cause.target]
        begin, end = max(source.begin_ns, target.begin_ns), target.end_ns or view.end_ns
        name = "message" if cause.kind == "p2p" else "waited for"
        if source.begin_ns > target.begin_ns:
            rank, thread = ends[cause.target]
            yield {
                "ph": "X", "name": "transfer", "cat": "transfer", "pid": rank, "tid": thread,
                "ts": _us(begin - origin), "dur": _us(max(0, end - begin)),
            }  # fmt: skip
        for phase, where, at in (("s", cause.source, source.begin_ns), ("f", cause.target, (begin + max(begin, end)) // 2)):
            rank, thread = ends[where]
            yield {
                "ph": phase, "id": number, "name": name, "cat": cause.kind, "pid": rank, "tid": thread,
                "ts": _us(at - origin), **({"bp": "e"} if phase == "f" else {}),
            }  # fmt: skip


def _expert_counters(view: StepView, origin: int) -> Iterator[Event]:
    for moment in view.moments:
        if moment.kind != "experts":
            continue
        shown = sorted(range(len(moment.values)), key=lambda expert: -moment.values[expert])[:MAX_EXPERTS]
        tokens = {f"expert {expert}": moment.values[expert] for expert in sorted(shown)}
        if len(shown) < len(moment.values):
            tokens["the others"] = sum(moment.values) - sum(tokens.values())
        yield {
            "ph": "C", "name": f"tokens per expert, layer {moment.layer}", "pid": moment.rank,
            "ts": _us(moment.begin_ns - origin), "args": tokens,
        }  # fmt: skip


def _bubble(view: StepView, rank: int, origin: int) -> Iterator[Event]:
    """Idle time of a rank within its pipeline schedules so far: level while it computes, rising while it does not."""
    actions = [span for span in view.spans if span.rank == rank and span.kind == "pipeline"]
    idle = 0
    for schedule in (span for span in actions if span.what == "schedule"):
        at, end = schedule.begin_ns, schedule.end_ns or view.end_ns
        yield _bubble_at(rank, at - origin, idle)
        for action in (span for span in actions if span.what in _COMPUTE and at <= (span.end_ns or at) <= end):
            if action.begin_ns > at:
                idle += action.begin_ns - at
                yield _bubble_at(rank, action.begin_ns - origin, idle)
            at = max(at, action.end_ns or at)
        idle += end - at
        yield _bubble_at(rank, end - origin, idle)


def _bubble_at(rank: int, at_ns: int, idle_ns: int) -> Event:
    return {"ph": "C", "name": "bubble", "pid": rank, "ts": _us(at_ns), "args": {"idle ms": idle_ns / 1e6}}


def _us(ns: int) -> float:
    return ns / 1000
