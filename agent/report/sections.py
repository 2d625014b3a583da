"""The sections of report.json that come straight from the rings: distributions, never a bare mean.

Observer -> of(observer) -> {"completeness", "collectives", "steps", "overhead", "ranks"}
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ranksight.agent.collectives.series import Rows
from ranksight.agent.collectives.tails import QUANTILES, RUN, Ints, Tails

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer

_NAMES = dict(zip(("p50", "p95", "p99", "p999"), QUANTILES, strict=True))


def of(observer: Observer) -> dict[str, Any]:
    """All sections, of the whole run so far."""
    return {
        "completeness": _completeness(observer),
        "collectives": _collectives(observer),
        "steps": _steps(observer),
        "overhead": overhead(observer),
        "ranks": [_rank(observer, source_number) for source_number in range(len(observer.current()))],
    }


def overhead(observer: Observer) -> dict[str, Any]:
    """Seconds that tap and hooks took on calling threads, and their share of the step time where steps are known."""
    per_rank = []
    for source in observer.current():
        steps = observer.steps_of(source.rank)
        seconds = observer.total(source.rank, "tap_cost_ns", "hooks_cost_ns") / 1e9
        fraction = seconds / steps.step_seconds if steps.step_seconds else None
        per_rank.append({"rank": source.rank, "hook_seconds": seconds, "fraction": fraction})
    known = [entry["fraction"] for entry in per_rank if entry["fraction"] is not None]
    return {
        "hook_seconds": sum(entry["hook_seconds"] for entry in per_rank) if per_rank else None,
        "fraction": max(known) if known else None,
        "per_rank": per_rank,
        "agent_seconds": observer.poll_seconds,
    }


def _completeness(observer: Observer) -> dict[str, Any]:
    facts = observer.completeness()
    notes = [f"rank {rank.rank}: {note}" for rank in facts.ranks for note in rank.notes]
    notes += [finding.message for finding in observer.findings()]
    return {
        "ranks_expected": facts.expected,
        "ranks_seen": len(facts.ranks),
        "ranks_silent": list(facts.silent),
        "records_written": sum(rank.collectives.written for rank in facts.ranks),
        "records_captured": sum(rank.collectives.captured for rank in facts.ranks),
        "records_dropped": sum(rank.collectives.dropped for rank in facts.ranks),
        "records_skipped": sum(rank.skipped for rank in facts.ranks),
        "events_dropped": sum(rank.events.dropped for rank in facts.ranks),
        "instances_incomplete": facts.incomplete_instances,
        "instances_partial": facts.partial_instances,
        "operations_folded": observer.series.folded,
        "per_rank": [asdict(rank) for rank in facts.ranks],
        "notes": notes,
    }


def _collectives(observer: Observer) -> dict[str, Any]:
    series = observer.series
    ranked = _gather(series.ranked, slice(1, 3))
    shared = _gather(series.shared, slice(0, 2))
    plain = _gather(series.plain, slice(1, 3))
    series.wait.count_added()
    by_op = []
    for (axis, op), rows in sorted(ranked.items()):
        instances = shared[axis, op]
        transfer = float(series.transfer_sum[instances].sum())
        unknown = int(series.unknown_exposed[rows].sum())
        by_op.append(
            {
                "axis": axis,
                "op": op,
                "count": int(series.operations[rows].sum()),
                "unfinished": int(series.unfinished[rows].sum()),
                "upper_bound": int(series.upper_bound[rows].sum()),
                "bytes": int(series.bytes[rows].sum()),
                "duration_seconds": _tail(series.duration_tails, rows),
                "wait_seconds": _tail(series.wait_tails, rows),
                "transfer_seconds": _tail(series.transfer_tails, instances),
                "skew_seconds": _tail(series.skew_tails, instances),
                "wait_seconds_total": float(series.wait.sums[plain[axis, op]].sum()),
                "transfer_seconds_total": transfer,
                "exposed_seconds_total": float(series.exposed[rows].sum())
                if unknown < series.operations[rows].sum()
                else None,
                "exposed_unknown": unknown,
                "instances": int(series.instances[instances].sum()),
                "algbw_bytes_per_second": _ratio(float(series.algorithm_bytes[instances].sum()), transfer),
                "busbw_bytes_per_second": _ratio(float(series.bus_bytes[instances].sum()), transfer),
            }
        )
    blame: dict[str, dict[str, float]] = {}
    for blamed, seconds in zip(series.blamed.labels, series.blame.tolist(), strict=False):
        blame.setdefault(str(blamed[1]), {})[str(blamed[0])] = seconds
    return {"by_op": by_op, "by_size": _by_size(observer), "blame_seconds": blame, "in_flight": _in_flight(observer)}


def _by_size(observer: Observer) -> list[dict[str, Any]]:
    series = observer.series
    merged = _gather(series.ranked, slice(1, 4))
    shared = _gather(series.shared, slice(0, 3))
    return [
        {
            "axis": labels[0],
            "op": labels[1],
            "size": labels[2],
            "count": int(series.operations[rows].sum()),
            "duration_seconds": _tail(series.duration_tails, rows),
            "transfer_seconds": _tail(series.transfer_tails, shared[labels]),
            "busbw_bytes_per_second": _tail(series.bandwidth_tails, shared[labels]),
        }
        for labels, rows in sorted(merged.items())
    ]


def _in_flight(observer: Observer) -> list[dict[str, Any]]:
    groups = observer.registry.groups
    return [
        {
            "axis": groups[operation.group].group.axis,
            "group": groups[operation.group].group.name,
            "op": operation.op,
            "group_seq": operation.seq,
            "launched": list(operation.launched),
            "not_launched": list(operation.not_launched),
        }
        for operation in observer.in_flight()
    ]


def _steps(observer: Observer) -> dict[str, Any]:
    rows = {labels[0]: np.array([number]) for number, labels in enumerate(observer.steps.rows.labels)}
    return {
        "per_rank": [
            {
                "rank": rank,
                "steps": state.steps,
                "last_step": state.last_step,
                "seconds": _tail(observer.steps.tails, rows[str(rank)]) if str(rank) in rows else None,
                "loss": _finite(state.loss),
                "grad_norm": _finite(state.grad_norm),
                "samples": state.samples,
                "tokens": state.tokens,
                "job_tokens": state.job_tokens,
                "step_seconds": state.step_seconds,
                "exception": state.exception,
            }
            for rank, state in sorted(observer.steps.ranks.items())
        ]
    }


def _rank(observer: Observer, number: int) -> dict[str, Any]:
    source = observer.current()[number]
    return asdict(source.reader.identity) | {
        "alive": source.state is not None,
        "step": source.reader["step"] if source.reader["step"] >= 0 else None,
        "life": source.reader["life"],
        "detail": source.reader["detail"],
    }


def _gather(rows: Rows, part: slice) -> dict[tuple[str, ...], Ints]:
    """Row numbers by a part of their labels."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, labels in enumerate(rows.labels):
        found.setdefault(tuple(str(label) for label in labels[part]), []).append(number)
    return {labels: np.array(numbers) for labels, numbers in found.items()}


def _tail(tails: Tails, rows: Ints) -> dict[str, float | None]:
    """p50 to p99.9 and the maximum over the run of some rows taken together."""
    values = tails.quantiles(RUN, merge=[rows])[0]
    known = not np.isnan(values[0])
    quantiles = {name: float(value) if known else None for name, value in zip(_NAMES, values, strict=True)}
    return quantiles | {"max": float(tails.maximum(RUN, [rows])[0]) if known else None}


def _ratio(amount: float, seconds: float) -> float | None:
    return amount / seconds if amount and seconds else None


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN: a value that is not finite becomes its name."""
    return value if value is None or math.isfinite(value) else str(value)
