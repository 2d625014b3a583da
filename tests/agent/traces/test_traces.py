"""Kept steps arrive at a collector as protobuf, all of them; a collector in any state of disrepair harms nobody."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ranksight.agent.config import Config, TracesSection
from ranksight.agent.export.trace_id import trace_id
from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.hooks import wire
from tests.support.otlp import Collector, attributes
from tests.support.ring_writer import RingWriter

MS = 1_000_000
SECOND = 1000 * MS
BEGIN = 1000 * SECOND


class Training:
    """Two ranks that all-reduce once a step of 100 ms; step 25 takes 300 ms."""

    def __init__(self, root: Path, **traces: object) -> None:
        self.now = BEGIN
        config = Config(traces=TracesSection.model_validate(traces))
        surroundings = Surroundings("run-7", None, config)
        self.observer = Observer(
            root / "rings", run_id="run-7", clock_ns=lambda: self.now, surroundings=surroundings, proc=root / "proc"
        )
        self.writers = [RingWriter(root / "rings", rank, 2) for rank in range(2)]
        self.groups = [
            writer.group("0", 2, rank, ranks=[0, 1], axis="dp") for rank, writer in enumerate(self.writers)
        ]
        for writer in self.writers:
            (root / "proc" / str(writer.ring["pid"])).mkdir(parents=True)
            (root / "proc" / str(writer.ring["pid"]) / "stat").write_text(
                f"{writer.ring['pid']} (python) S {'0 ' * 18}{writer.ring['start_ticks']} 0\n"
            )

    def train(self, steps: int) -> None:
        for step in range(steps):
            took = 300 * MS if step == 25 else 100 * MS
            for rank, (writer, group) in enumerate(zip(self.writers, self.groups, strict=True)):
                writer.ring["step"] = step
                writer.collective(group, step, self.now + (10 + rank) * MS, self.now + 20 * MS, step=step)
                writer.ring.events.write(wire.EventKind.STEP, self.now, self.now + took, step=step)
                writer.ring.events.write(wire.EventKind.LOSS, self.now + 90 * MS, self.now + 90 * MS, step=step, values=(2.0,))
            self.now += took
            self.observer.poll()

    def fates(self) -> dict[str, float]:
        families = {family.name: family for family in self.observer.metrics()}
        return {sample.labels["fate"]: sample.value for sample in families["ranksight_trace_spans"].samples}


def test_kept_steps_arrive_whole(tmp_path: Path) -> None:
    with Collector() as collector:
        training = Training(tmp_path, endpoint=collector.endpoint, every=20, headers={"X-Token": "secret"})
        training.train(45)
        training.observer.final()
        assert training.observer.parts.failed == {}
        assert training.fates() == {"sent": 20, "failed": 0, "dropped_queue": 0, "dropped_budget": 0}
    by_trace: dict[str, list[tuple[str, dict[str, object]]]] = {}
    for resource, span in collector.spans:
        assert resource["service.name"] == "training" and resource["host.name"] == socket.gethostname()
        assert resource["nemo.run.id"] == "run-7" and span.end_time_unix_nano > span.start_time_unix_nano
        assert abs(span.start_time_unix_nano - (time.time_ns() - time.monotonic_ns()) - BEGIN) < 60 * SECOND
        by_trace.setdefault(span.trace_id.hex(), []).append((span.name, attributes(span)))
    expected = {trace_id("run-7", step): (step, why) for step, why in ((0, "every"), (20, "every"), (25, "slow"), (40, "every"))}
    assert set(by_trace) == set(expected)
    for trace, (step, why) in expected.items():
        names = [name for name, _ in by_trace[trace]]
        assert sorted(names) == ["all_reduce", "all_reduce", "rank 0", "rank 1", f"step {step}"]
        said = dict(by_trace[trace])
        assert said[f"step {step}"]["ranksight.kept_because"] == why
        assert said["rank 1"]["dl.loss"] == 2.0 and said["rank 1"]["dl.data_parallel.rank"] == 1
    assert set(collector.tokens) == {"secret"}
    waiting = [span for _, span in collector.spans if span.links]
    assert [(span.name, attributes(span)["dl.rank"]) for span in waiting] == [("all_reduce", 0)] * 4


def test_a_budget_keeps_steps_back_and_counts_them(tmp_path: Path) -> None:
    with Collector() as collector:
        training = Training(tmp_path, endpoint=collector.endpoint, every=1, spans_per_second=0.1)
        training.train(10)
        training.observer.final()
    assert (training.fates()["sent"], training.fates()["dropped_budget"]) == (5, 9 * 5)


def _nobody() -> tuple[str, Callable[[], None]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1/traces", lambda: None


def _black_hole() -> tuple[str, Callable[[], None]]:
    listener = socket.create_server(("127.0.0.1", 0))
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces", listener.close


def _refuses() -> tuple[str, Callable[[], None]]:
    stack = contextlib.ExitStack()
    collector = stack.enter_context(Collector(status=503))
    return collector.endpoint, stack.close


@pytest.mark.timeout(60)
@pytest.mark.parametrize("collector", [_nobody, _black_hole, _refuses])
def test_a_broken_collector_costs_traces_and_nothing_else(
    tmp_path: Path, collector: Callable[[], tuple[str, Callable[[], None]]]
) -> None:
    endpoint, end = collector()
    try:
        training = Training(tmp_path, endpoint=endpoint, every=1)
        training.train(45)
        training.observer.final()  # returns although nobody answers
    finally:
        end()
    fates = training.fates()
    assert training.observer.parts.failed == {} and fates["sent"] == 0
    assert fates["failed"] + fates["dropped_queue"] == 45 * 5


@pytest.mark.timeout(60)
def test_exemplars_point_to_steps_that_have_a_trace(tmp_path: Path) -> None:
    with Collector() as collector:
        training = Training(tmp_path, endpoint=collector.endpoint, every=10)
        training.train(38)
        exemplars = [
            sample.exemplar.labels["trace_id"]
            for family in training.observer.metrics() for sample in family.samples if sample.exemplar
        ]  # fmt: skip
        training.observer.final()
    kept = {span.trace_id.hex() for _, span in collector.spans}
    # The usual bucket shows the newest tenth step; the slow step has a bucket of its own.
    assert {trace_id("run-7", 30), trace_id("run-7", 25)} <= set(exemplars) <= kept


def test_there_is_nothing_without_an_endpoint(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.train(3)
    training.observer.final()
    assert "ranksight_trace_spans" not in {family.name for family in training.observer.metrics()}
