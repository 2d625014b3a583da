"""The metrics as text: both formats parse, both paths agree, promtool is content, series stay bounded."""

import subprocess
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, parser
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser

from ranksight.agent import catalog
from ranksight.agent.catalog import MAX_COMBINATIONS
from ranksight.agent.export import exposition
from ranksight.agent.export.trace_id import trace_id
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.agent.conftest import BEGIN, MS, SECOND, Host


@pytest.fixture
def busy(host: Host) -> Host:
    """Two ranks with every kind of fact that becomes a metric."""
    for rank in range(2):
        writer = host.rank(rank, 2, local_world_size=2)
        group = writer.group("0", 2, rank, ranks=[0, 1])
        for seq in range(8):
            at = BEGIN + seq * 10 * MS
            writer.collective(group, seq, at + rank * MS, at + 3 * MS, step=seq)
            writer.ring.events.write(wire.EventKind.STEP, at, at + 10 * MS, step=seq)
        writer.collective(group, 8, BEGIN + 90 * MS, step=8)
        for kind, values in (
            (wire.EventKind.LOSS, (2.5,)),
            (wire.EventKind.GRAD_NORM, (float("inf"),)),
            (wire.EventKind.BATCH, (8.0, 4096.0, 0.0, 0.0)),
            (wire.EventKind.MEMORY, (1e9, 0.0, 0.0)),
        ):
            writer.ring.events.write(kind, BEGIN, BEGIN, step=8, values=values)
        writer.ring.events.write(wire.EventKind.EXPERTS, BEGIN, BEGIN, step=8, layer=1, values=(6.0, 2.0))
        for name, value in {
            "step": 8, "step_begin_ns": BEGIN + 80 * MS, "tap_cost_ns": 5000, "native_heartbeat_ns": BEGIN,
            "python_heartbeat_ns": BEGIN,
        }.items():  # fmt: skip
            writer.ring[name] = value
    host.poll(1)
    host.poll(3)  # the budget of a step is settled two seconds after its end
    return host


# prometheus_client does not annotate these.
parse_text: Any = parser.text_string_to_metric_families
parse_openmetrics: Any = openmetrics_parser.text_string_to_metric_families
generate_openmetrics: Any = openmetrics.generate_latest


def comparable(families: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families  # type: ignore[attr-defined]
        for sample in family.samples
        if not sample.name.startswith("ranksight_agent_")
    }


# of parts that are off by default, and of faults that this host does not have
EXCHANGED = {name for name in catalog.BY_NAME if name.startswith(("ranksight_expert_rank", "ranksight_expert_lost"))}
WHEN_CONFIGURED = EXCHANGED | {"ranksight_trace_spans_total", "ranksight_findings_total"}


def test_text_parses_and_has_every_metric_of_the_catalogue(busy: Host) -> None:
    body, content_type = busy.observer.exposition()
    families = list(parse_text(body.decode()))
    assert content_type == exposition.TEXT
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families if family.samples}
    assert names == {spec.name for spec in catalog.METRICS} - WHEN_CONFIGURED
    for family in families:
        spec = catalog.BY_NAME[family.name + ("_total" if family.type == "counter" else "")]
        assert family.type == spec.type
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(spec.labels), sample


def test_openmetrics_parses_and_carries_the_trace_of_the_step(busy: Host) -> None:
    body, content_type = busy.observer.exposition(openmetrics=True)
    assert content_type == exposition.OPENMETRICS
    families = {family.name: family for family in parse_openmetrics(body.decode())}
    buckets = [
        sample
        for sample in families["ranksight_collective_duration_seconds"].samples
        if sample.exemplar is not None and sample.labels["rank"] == "0"
    ]
    (bucket,) = buckets
    assert bucket.labels["le"] == "0.005"
    assert bucket.exemplar.labels == {"trace_id": trace_id("run-7", 7)}
    assert bucket.exemplar.value == pytest.approx(0.003)
    assert float(bucket.exemplar.timestamp) == pytest.approx(1_700_000_000 + (BEGIN + 73 * MS) / SECOND, abs=1e-3)


def test_the_fast_path_and_prometheus_client_agree(busy: Host) -> None:
    class Collector:
        def collect(self) -> object:
            return busy.observer.metrics()

    registry = CollectorRegistry()
    registry.register(Collector())  # type: ignore[arg-type]
    theirs = generate_openmetrics(registry).decode()
    ours = busy.observer.exposition(openmetrics=True)[0].decode()
    assert comparable(parse_openmetrics(theirs)) == comparable(parse_openmetrics(ours))


@pytest.mark.system("promtool")
def test_promtool_finds_nothing_to_complain_about(busy: Host) -> None:
    body, _ = busy.observer.exposition()
    checked = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


def test_what_is_not_known_is_not_exported(host: Host) -> None:
    host.rank(0, 1)
    host.poll()
    text = host.observer.exposition()[0].decode()
    for name in (
        "ranksight_loss{",
        "ranksight_tokens_total{",
        "ranksight_hook_overhead_ratio{",
        "_heartbeat_age_seconds{",
    ):
        assert name not in text
    assert "NaN" not in text


def test_labels_are_escaped(host: Host) -> None:
    writer = host.rank(0, 1)
    group = writer.group('a"\\\n', 1, 0, ranks=[0], axis='x"y')
    writer.collective(group, 0, BEGIN, BEGIN + MS)
    host.poll()
    text = host.observer.exposition()[0].decode()
    families = {family.name: family for family in parse_text(text)}
    (info,) = families["ranksight_group_info"].samples
    assert (info.labels["group"], info.labels["axis"]) == ('a"\\\n', 'x"y')


def test_series_are_bounded_and_what_was_folded_is_counted(host: Host) -> None:
    writer = host.rank(0, 70, local_world_size=1, sizes=Sizes(4096, 64, 1 << 16, 1 << 16))
    ops = [name for name in wire.OP_CODES if name not in {"send", "recv_", "recv_any_source_"}]
    for number in range(70):
        group = writer.group(str(number), 70, 0, ranks=list(range(70)), axis=f"axis{number % 40}")
        for seq in range(30):  # 2,100 operations, more than 500 shapes
            writer.collective(group, seq, BEGIN, BEGIN + MS, op=ops[seq % len(ops)], bytes=1 << (number + seq) % 36)
    host.poll()
    observer = host.observer
    assert len(observer.series.ranked) == MAX_COMBINATIONS + 1
    text = observer.exposition()[0].decode()
    samples = {
        (sample.name, sample.labels.get("axis"), sample.labels.get("group")): sample.value
        for family in parse_text(text)
        for sample in family.samples
        if sample.name in {"ranksight_collective_operations_total", "ranksight_group_operations_launched_total"}
    }
    assert samples["ranksight_collective_operations_total", "other", None] == observer.series.folded > 0
    assert samples["ranksight_group_operations_launched_total", "other", "other"] == 6 * 30
    assert f"ranksight_folded_operations_total {observer.series.folded}" in text
    assert "ranksight_folded_groups 6" in text
    total = sum(line["count"] for line in observer.report_sections()["collectives"]["by_op"])  # type: ignore[index]
    assert total == 70 * 30
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) <= catalog.most_lines(ranks=1)


def test_many_ranks_share_a_label_beyond_the_limit(host: Host) -> None:
    for rank in range(66):
        writer = host.rank(rank, 66, sizes=Sizes(8, 8, 4096, 4096))
        group = writer.group("0", 66, rank, ranks=list(range(66)))
        writer.collective(group, 0, BEGIN, BEGIN + MS)
    host.poll()
    text = host.observer.exposition()[0].decode()
    assert 'ranksight_collective_operations_total{rank="other",axis="world",op="all_reduce",size="4KiB"} 2' in text


def test_counters_survive_a_restart_of_a_rank(busy: Host) -> None:
    def counters() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = parse_text(busy.observer.exposition()[0].decode())
        # A new process group begins anew, and says so: Prometheus knows a counter that restarts.
        return comparable(f for f in families if f.type == "counter" and not f.name.startswith("ranksight_group_"))

    before = counters()
    busy.end_process(100)
    busy.poll(2)
    busy.rank(0, 2, generation=1)
    busy.poll(2)
    after = counters()
    assert all(after[key] >= value for key, value in before.items())


def test_ranges() -> None:
    assert exposition.ranges((0, 1, 2, 3, 8)) == "0-3,8"
    assert exposition.ranges((4,)) == "4"
    assert exposition.ranges(()) == ""
    assert exposition.ranges((3, 1)) == "3,1"


def test_trace_ids_are_stable_and_distinct() -> None:
    assert trace_id("run-7", 0) == "295469a1cbb5dc474728226c609d9156"
    assert len({trace_id(run, step) for run in ("a", "b") for step in range(-1, 1000)}) == 2002
    assert int(trace_id("a", 0), 16) != 0
