"""From the observer's numbers to Prometheus text and OpenMetrics.

    Observer -> blocks(observer) -> Renderer.render   text with cached label prefixes: the scrape path
                                 -> families          prometheus_client families, for registries and tests

`prometheus_client.generate_latest` needs 100 to 150 ms of CPU for the 8,000 lines of 8 ranks, most of it for escaping
labels again and again. Prefixes are therefore rendered once per series; a test holds both paths equal. OpenMetrics adds
an exemplar to each histogram bucket: the trace id of the step in which the last value of the bucket was seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

from ranksight.agent import catalog
from ranksight.agent.catalog import MAX_GROUPS, Spec, Type
from ranksight.agent.collectives.series import BUCKETS, OTHER, Histogram
from ranksight.agent.collectives.tails import QUANTILES, WINDOWS_NS, Floats, Tails
from ranksight.agent.export.trace_id import trace_id
from ranksight.agent.report.sections import overhead

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_LE = (*(repr(bound) for bound in BUCKETS), "+Inf")
_TAILS = {0.01: "p1", 0.5: "p50", 0.95: "p95", 0.99: "p99", 0.999: "p999"}
_BANDWIDTH_QUANTILES = (0.01, 0.5, 0.99)
_MAX_PREFIXES = 200_000

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """All series of one metric: one value per label tuple, or a histogram, or a table of tails.

    In a table, `suffixes` are the last labels, one tuple per column; rows that begin with NaN have nothing to say.
    """

    spec: Spec
    labels: Sequence[Labels]
    values: Sequence[float] = ()
    histogram: Histogram | None = None
    suffixes: tuple[Labels, ...] = ()
    table: Floats | None = None

    def series(self) -> Iterator[tuple[Labels, float]]:
        """Labels and value of each series that is not a histogram."""
        yield from zip(self.labels, self.values, strict=False)
        if self.table is not None:
            for labels, row in zip(self.labels, self.table.tolist(), strict=True):
                yield from (
                    (labels + suffix, value)
                    for suffix, value in zip(self.suffixes, row, strict=True)
                    if not math.isnan(value)
                )


def blocks(observer: Observer) -> Iterator[Block]:
    """Every metric of the catalogue that has something to say."""
    yield from _collectives(observer)
    yield from _groups(observer)
    yield from _steps(observer)
    yield from _ranks(observer)
    yield from _agent(observer)
    yield from observer.parts.blocks(observer)


def families(observer: Observer) -> Iterable[Metric]:
    """The blocks as prometheus_client families."""
    wall = _wall_offset(observer)
    for block in blocks(observer):
        yield _family(block, observer.run_id, wall)


class Renderer:
    """Renders the blocks of one observer; keeps the rendered names and labels of every series."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._prefixes: dict[tuple[str, Labels], tuple[str, ...]] = {}
        self.cpu_seconds = 0.0

    def render(self, openmetrics: bool = False) -> tuple[bytes, str]:
        """Text and its content type."""
        begin = time.thread_time()
        if len(self._prefixes) > _MAX_PREFIXES:
            self._prefixes.clear()
        wall = _wall_offset(self._observer) if openmetrics else 0
        lines: list[str] = []
        for block in blocks(self._observer):
            lines.extend(_head(block.spec, openmetrics))
            if block.histogram is not None:
                self._histogram(block, block.histogram, lines, openmetrics, wall)
            elif block.table is not None:
                self._table(block, block.table, lines)
            else:
                self._plain(block, lines)
        lines.append("# EOF\n" if openmetrics else "")
        text = "\n".join(lines).encode()
        self.cpu_seconds += time.thread_time() - begin
        return text, OPENMETRICS if openmetrics else TEXT

    def _plain(self, block: Block, lines: list[str]) -> None:
        name, names = block.spec.name, block.spec.labels
        for labels, value in zip(block.labels, block.values, strict=True):
            prefix = self._prefixes.get((name, labels))
            if prefix is None:
                prefix = self._prefixes[name, labels] = (f"{name}{_braces(names, labels)} ",)
            lines.append(prefix[0] + _number(value))

    def _table(self, block: Block, table: Floats, lines: list[str]) -> None:
        name, names = block.spec.name, block.spec.labels
        for labels, row in zip(block.labels, table.tolist(), strict=True):
            prefixes = self._prefixes.get((name, labels))
            if prefixes is None:
                prefixes = tuple(f"{name}{_braces(names, labels + suffix)} " for suffix in block.suffixes)
                self._prefixes[name, labels] = prefixes
            lines.extend(
                [f"{prefix}{value!r}" for prefix, value in zip(prefixes, row, strict=True) if not math.isnan(value)]
            )

    def _histogram(self, block: Block, histogram: Histogram, lines: list[str], openmetrics: bool, wall: int) -> None:
        histogram.count_added()
        count = len(block.labels)
        cumulative = np.cumsum(histogram.counts[:count], axis=1).tolist()
        sums = histogram.sums[:count].tolist()
        for row, labels in enumerate(block.labels):
            prefixes = self._bucket_prefixes(block.spec, labels)
            counts = cumulative[row]
            if openmetrics:
                exemplars = _exemplars(histogram, row, self._observer.run_id, wall)
                lines.extend(f"{p}{n}{e}" for p, n, e in zip(prefixes, counts, exemplars, strict=False))
            else:
                lines.extend(f"{p}{n}" for p, n in zip(prefixes, counts, strict=False))
            lines.append(prefixes[-2] + repr(sums[row]))
            lines.append(f"{prefixes[-1]}{counts[-1]}")

    def _bucket_prefixes(self, spec: Spec, labels: Labels) -> tuple[str, ...]:
        found = self._prefixes.get((spec.name, labels))
        if found is None:
            buckets = [f"{spec.name}_bucket{_braces((*spec.labels, 'le'), (*labels, bound))} " for bound in _LE]
            braces = _braces(spec.labels, labels)
            found = self._prefixes[spec.name, labels] = (
                *buckets,
                f"{spec.name}_sum{braces} ",
                f"{spec.name}_count{braces} ",
            )
        return found


def _collectives(observer: Observer) -> Iterator[Block]:
    series = observer.series
    ranked, shared = _labels(series.ranked.labels), _labels(series.shared.labels)
    plain = _labels(series.plain.labels)
    name = "ranksight_collective_{}".format
    for what, values in (
        ("operations_total", series.operations),
        ("bytes_total", series.bytes),
        ("exposed_seconds_total", series.exposed),
        ("exposed_unknown_total", series.unknown_exposed),
        ("upper_bound_total", series.upper_bound),
        ("unfinished_total", series.unfinished),
    ):
        yield Block(_spec(name(what)), ranked, values[: len(ranked)].tolist())
    yield Block(_spec(name("duration_seconds")), plain, histogram=series.duration)
    yield Block(_spec(name("wait_seconds")), plain, histogram=series.wait)
    for what, values in (
        ("instances_total", series.instances),
        ("transfer_seconds_total", series.transfer_sum),
        ("algorithm_bytes_total", series.algorithm_bytes),
        ("bus_bytes_total", series.bus_bytes),
    ):
        yield Block(_spec(name(what)), shared, values[: len(shared)].tolist())
    yield tail_block(name("duration_tail_seconds"), ranked, series.duration_tails)
    yield tail_block(name("wait_tail_seconds"), ranked, series.wait_tails)
    yield tail_block(name("transfer_tail_seconds"), shared, series.transfer_tails)
    yield tail_block(name("skew_tail_seconds"), shared, series.skew_tails)
    yield tail_block(
        name("bus_bandwidth_tail_bytes_per_second"), shared, series.bandwidth_tails, _BANDWIDTH_QUANTILES, maximum=False
    )
    blamed = _labels(series.blamed.labels)
    yield Block(_spec("ranksight_blame_seconds_total"), blamed, series.blame[: len(blamed)].tolist())
    yield _single("ranksight_instances_incomplete_total", observer.timeline.incomplete)
    yield _single("ranksight_instances_partial_total", observer.timeline.partial)
    yield _single("ranksight_join_waiting_operations", observer.timeline.waiting)
    yield _single("ranksight_folded_operations_total", series.folded)


def _groups(observer: Observer) -> Iterator[Block]:
    newest: dict[str, int] = {}
    for number, known in enumerate(observer.registry.groups):
        if number:
            newest[f"{known.group.name}/{','.join(map(str, known.group.ranks))}"] = number
    named = list(newest.values())[:MAX_GROUPS]
    labels = {
        number: (observer.registry.groups[number].group.name, observer.registry.groups[number].group.axis)
        for number in named
    }
    launched: dict[Labels, float] = {}
    seconds: dict[Labels, float] = {}
    current = set(newest.values())
    for number, rank, operations, spent in observer.group_members():
        if number in current:
            key = (str(rank), *labels.get(number, (OTHER, OTHER)))
            launched[key] = launched.get(key, 0) + operations
            seconds[key] = seconds.get(key, 0) + spent
    yield Block(_spec("ranksight_group_operations_launched_total"), list(launched), list(launched.values()))
    yield Block(_spec("ranksight_group_collective_seconds_total"), list(seconds), list(seconds.values()))
    infos = [
        (known.group.name, known.group.axis, ranges(known.group.ranks), str(known.group.size))
        for known in (observer.registry.groups[number] for number in named)
    ]
    yield Block(_spec("ranksight_group_info"), infos, [1] * len(infos))
    yield _single("ranksight_folded_groups", max(len(newest) - MAX_GROUPS, 0))
    in_flight: dict[Labels, list[int]] = {(str(source.rank),): [] for source in observer.current()}
    for operation in observer.in_flight():
        for rank in operation.launched:
            in_flight.setdefault((str(rank),), []).append(operation.since_ns)
    now = observer.now_ns()
    yield Block(_spec("ranksight_in_flight_operations"), list(in_flight), [len(since) for since in in_flight.values()])
    ages = [(now - min(since)) / 1e9 if since else 0.0 for since in in_flight.values()]
    yield Block(_spec("ranksight_in_flight_oldest_seconds"), list(in_flight), ages)


def _steps(observer: Observer) -> Iterator[Block]:
    steps = observer.steps
    labels = _labels(steps.rows.labels)
    yield Block(_spec("ranksight_step_duration_seconds"), labels, histogram=steps.histogram)
    yield tail_block("ranksight_step_duration_tail_seconds", labels, steps.tails)
    current = [(source.rank, source) for source in observer.current()]
    now = observer.now_ns()
    in_step = [(rank, source.reader) for rank, source in current if source.reader["step"] >= 0]
    yield Block(
        _spec("ranksight_step_in_progress"),
        [(str(rank),) for rank, _ in in_step],
        [reader["step"] for _, reader in in_step],
    )
    begun = [(rank, reader["step_begin_ns"]) for rank, reader in in_step if reader["step_begin_ns"]]
    yield Block(
        _spec("ranksight_step_in_progress_seconds"),
        [(str(rank),) for rank, _ in begun],
        [(now - at) / 1e9 for _, at in begun],
    )
    for name, field in (
        ("ranksight_loss", "loss"),
        ("ranksight_gradient_norm", "grad_norm"),
        ("ranksight_samples_total", "samples"),
        ("ranksight_tokens_total", "tokens"),
        ("ranksight_rank_resident_memory_bytes", "rss_bytes"),
    ):
        known = {(str(rank),): getattr(state, field) for rank, state in sorted(steps.ranks.items())}
        known = {labels: value for labels, value in known.items() if value is not None}
        yield Block(_spec(name), list(known), list(known.values()))


def _ranks(observer: Observer) -> Iterator[Block]:
    current = observer.current()
    ranks = [(str(source.rank),) for source in current]
    now = observer.now_ns()
    yield Block(_spec("ranksight_rank_up"), ranks, [float(source.state is not None) for source in current])
    identities = [source.reader.identity for source in current]
    infos = [(str(i.rank), str(i.local_rank), str(i.world_size), str(i.generation), i.tap) for i in identities]
    yield Block(_spec("ranksight_rank_info"), infos, [1] * len(infos))
    beats = [
        ((str(source.rank), thread), (now - source.reader[f"{thread}_heartbeat_ns"]) / 1e9)
        for source in current
        for thread in ("native", "python")
        if source.reader[f"{thread}_heartbeat_ns"]
    ]
    yield Block(
        _spec("ranksight_rank_heartbeat_age_seconds"), [labels for labels, _ in beats], [age for _, age in beats]
    )
    expected = observer.ranks_expected()
    yield Block(
        _spec("ranksight_ranks_expected"),
        [()] if expected is not None else [],
        [expected] if expected is not None else [],
    )
    yield _single("ranksight_ranks_seen", len(current))
    yield Block(_spec("ranksight_run_info"), [(observer.run_id,)], [1])
    facts = observer.completeness()
    rings = [
        ((str(rank.rank), ring), counts)
        for rank in facts.ranks
        for ring, counts in (("collectives", rank.collectives), ("events", rank.events))
    ]
    yield Block(
        _spec("ranksight_records_written_total"),
        [labels for labels, _ in rings],
        [counts.written for _, counts in rings],
    )
    yield Block(
        _spec("ranksight_records_dropped_total"),
        [labels for labels, _ in rings],
        [counts.dropped for _, counts in rings],
    )
    seen = [(str(rank.rank),) for rank in facts.ranks]
    yield Block(_spec("ranksight_records_skipped_total"), seen, [rank.skipped for rank in facts.ranks])
    yield Block(_spec("ranksight_late_completions_total"), seen, [rank.late_completions for rank in facts.ranks])
    yield _single("ranksight_unreadable_rings", len(facts.unreadable))
    for name, fields, unit in (
        ("ranksight_hook_seconds_total", ("tap_cost_ns", "hooks_cost_ns"), 1e9),
        ("ranksight_hook_errors_total", ("tap_errors", "hooks_errors"), 1),
    ):
        parts = [
            ((str(source.rank), part), observer.total(source.rank, field) / unit)
            for source in current
            for part, field in zip(("tap", "hooks"), fields, strict=True)
        ]
        yield Block(_spec(name), [labels for labels, _ in parts], [value for _, value in parts])
    shares = [
        (entry["rank"], entry["fraction"]) for entry in overhead(observer)["per_rank"] if entry["fraction"] is not None
    ]
    yield Block(
        _spec("ranksight_hook_overhead_ratio"), [(str(rank),) for rank, _ in shares], [share for _, share in shares]
    )
    yield Block(_spec("ranksight_detail_level"), ranks, [source.reader["detail"] for source in current])


def _agent(observer: Observer) -> Iterator[Block]:
    yield _single("ranksight_agent_poll_seconds_total", observer.poll_seconds)
    yield _single("ranksight_agent_polls_total", observer.polls)
    yield _single("ranksight_agent_exposition_seconds_total", observer.exposition_seconds)


def _single(name: str, value: float) -> Block:
    return Block(_spec(name), [()], [value])


def _spec(name: str) -> Spec:
    return catalog.BY_NAME[name]


def _labels(labels: Iterable[tuple[object, ...]]) -> list[Labels]:
    return [tuple(map(str, row)) for row in labels]


def tail_block(
    name: str, labels: list[Labels], tails: Tails, quantiles: tuple[float, ...] = QUANTILES, maximum: bool = True,
    windows: tuple[str, ...] = tuple(WINDOWS_NS),
) -> Block:  # fmt: skip
    """Quantiles, and the maximum, of the first rows of `tails`, over sliding windows."""
    names = [_TAILS[quantile] for quantile in quantiles] + (["max"] if maximum else [])
    columns: list[Floats] = []
    for window in windows:
        found = tails.quantiles(window, quantiles)[: len(labels)]
        columns.append(found)
        if maximum:
            largest = tails.maximum(window)[: len(labels), None]
            columns.append(np.where(np.isnan(found[:, :1]), np.nan, largest))
    suffixes = tuple((window, tail) for window in windows for tail in names)
    return Block(_spec(name), labels, suffixes=suffixes, table=np.hstack(columns))


def _head(spec: Spec, openmetrics: bool) -> list[str]:
    name = spec.name.removesuffix("_total") if openmetrics and spec.type == Type.COUNTER else spec.name
    head = [f"# HELP {name} {_escape(spec.help) if openmetrics else spec.help}", f"# TYPE {name} {spec.type}"]
    if openmetrics and spec.unit:
        head.append(f"# UNIT {name} {spec.unit}")
    return head


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _exemplars(histogram: Histogram, row: int, run_id: str, wall_ns: int) -> list[str]:
    return [
        f' # {{trace_id="{trace_id(run_id, step)}"}} {value!r} {(at + wall_ns) / 1e9:.3f}' if at else ""
        for value, step, at in zip(
            histogram.values[row].tolist(), histogram.steps[row].tolist(), histogram.times[row].tolist(), strict=True
        )
    ]


def _wall_offset(observer: Observer) -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC of this host, as the newest rank saw it."""
    readers = [source.reader for source in observer.sources.values()]
    return max((reader["created_wall_ns"] - reader["created_monotonic_ns"] for reader in readers), default=0)


def _family(block: Block, run_id: str, wall_ns: int) -> Metric:
    spec = block.spec
    if block.histogram is not None:
        block.histogram.count_added()
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels, unit="")
        cumulative = np.cumsum(block.histogram.counts[: len(block.labels)], axis=1).tolist()
        for row, labels in enumerate(block.labels):
            numbers = zip(
                _LE, cumulative[row], block.histogram.values[row].tolist(), block.histogram.steps[row].tolist(),
                block.histogram.times[row].tolist(), strict=True,
            )  # fmt: skip
            buckets = [
                (
                    bound,
                    float(count),
                    Exemplar({"trace_id": trace_id(run_id, step)}, value, (at + wall_ns) / 1e9) if at else None,
                )
                for bound, count, value, step, at in numbers
            ]
            histogram.add_metric(list(labels), buckets, float(block.histogram.sums[row]))  # type: ignore[arg-type]
        return histogram
    kind = CounterMetricFamily if spec.type == Type.COUNTER else GaugeMetricFamily
    family = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in block.series():
        family.add_metric(list(labels), value)
    return family


def ranges(ranks: Sequence[int]) -> str:
    """Ranks in short: "0-3,8" for 0, 1, 2, 3 and 8; "" when they are not known."""
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        end = at
        while end + 1 < len(ranks) and ranks[end + 1] == ranks[end] + 1:
            end += 1
        parts.append(str(ranks[at]) if end == at else f"{ranks[at]}-{ranks[end]}")
        at = end + 1
    return ",".join(parts)
