"""A real pipeline of two ranks, watched: its archive holds every operation, a collector gets what the archive holds.

One run serves all checks.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ranksight.agent.archive.read import Archive, open_archive
from ranksight.agent.export.trace_id import trace_id
from ranksight.agent.traces.command import write_trace
from tests.support import ranksight
from tests.support.otlp import Collector, attributes

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

STEPS, EVERY = 7, 3
PLAN = ("--pp", "2", "--microbatches", "4", "--steps", str(STEPS), "--every", "3")
SPANS = {"phase", "pipeline", "checkpoint", "data", "gc"}


class Watched(NamedTuple):
    """What the run left; `spans` by trace id."""

    run_dir: Path
    report: dict[str, Any]
    archive: Archive
    spans: dict[str, list[Any]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("watched")
    with Collector() as collector:
        config = folder / "ranksight.toml"
        config.write_text(f'[traces]\nendpoint = "{collector.endpoint}"\nevery = {EVERY}\n[archive]\nrotate_seconds = 1\n')
        trainer = [*ranksight.TORCHRUN, "--nproc-per-node", "2", "-m", "ranksight.trainer", *PLAN]
        options = ("--port", "0", "--config", str(config))
        code, _, err = ranksight.run(
            folder / "run", [*trainer, "--folder", str(folder / "checkpoints")], options=options, timeout=300
        )
    assert code == 0, err
    spans: dict[str, list[Any]] = {}
    for _, span in collector.spans:
        spans.setdefault(span.trace_id.hex(), []).append(span)
    return Watched(folder / "run", ranksight.report(folder / "run"), open_archive(folder / "run"), spans)


def test_the_archive_holds_every_operation(watched: Watched) -> None:
    completeness = watched.report["completeness"]
    assert completeness["records_dropped"] == 0 and watched.report["archive"]["dropped"] == 0
    assert watched.archive.collectives().num_rows == completeness["records_written"]
    assert watched.archive.steps() == (0, STEPS - 1)


def test_every_nth_step_is_a_trace_with_every_operation_and_span_of_the_archive(watched: Watched) -> None:
    kept = {trace_id(watched.report["run"]["id"], step): step for step in range(0, STEPS, EVERY)}
    assert set(kept) <= set(watched.spans)
    for trace, step in kept.items():
        spans = watched.spans[trace]
        operations = watched.archive.collectives(step).to_pylist()
        events = [event for event in watched.archive.events(step).to_pylist() if event["end_ns"] and event["kind"] in SPANS]
        assert len(spans) == 1 + 2 + len(operations) + len(events)
        by_op = Counter(attributes(span).get("dl.collective.op") for span in spans)
        assert {op: count for op, count in by_op.items() if op} == Counter(row["op"] for row in operations)
        assert len({span.span_id for span in spans}) == len(spans)
        (root,) = (span for span in spans if not span.parent_span_id)
        assert root.name == f"step {step}"
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


def test_each_message_of_the_pipeline_is_linked_to_its_send(watched: Watched) -> None:
    spans = {span.span_id: span for span in watched.spans[trace_id(watched.report["run"]["id"], EVERY)]}
    receives = [span for span in spans.values() if span.name == "recv"]
    assert len(receives) >= 8  # four microbatches there and back
    for span in receives:
        (link,) = span.links
        send = spans[link.span_id]
        said, of_send = attributes(span), attributes(send)
        assert (send.name, of_send["dl.rank"], of_send["dl.collective.peer"]) == ("send", said["dl.collective.peer"], said["dl.rank"])
        assert of_send["dl.collective.seq"] == said["dl.collective.seq"]


def test_ranks_say_what_went_in_and_came_out(watched: Watched) -> None:
    spans = watched.spans[trace_id(watched.report["run"]["id"], EVERY)]
    first, last = (attributes(span) for name in ("rank 0", "rank 1") for span in spans if span.name == name)
    for rank, said in enumerate((first, last)):
        assert (said["dl.pipeline_parallel.rank"], said["dl.pipeline_parallel.size"]) == (rank, 2)
        assert said["dl.grad_norm"] > 0 and 0 < said["dl.loss"] < 10
        assert said["dl.batch.fingerprint"] > 0 and said["dl.batch.tokens"] > 0


def test_the_start_says_how_the_job_is_partitioned(watched: Watched) -> None:
    spans = watched.spans[trace_id(watched.report["run"]["id"], -1)]
    assert {span.name for span in spans} >= {"startup", "rank 0", "rank 1", "partition"}
    for span in spans:
        if span.name == "partition":
            assert list(attributes(span)["dl.partition.pp"]) == [0, 1]


def test_checkpoints_are_spans_with_their_path(watched: Watched) -> None:
    saved = [span for span in watched.spans[trace_id(watched.report["run"]["id"], EVERY)] if span.name == "checkpoint"]
    assert saved, "a checkpoint was written in this step"
    assert any("dl.checkpoint.path" in attributes(span) for span in saved)


def test_the_timeline_of_the_step_has_all_of_it(watched: Watched, tmp_path: Path) -> None:
    events = json.loads(write_trace(watched.run_dir, EVERY, tmp_path / "step.json").read_text())["traceEvents"]
    slices = Counter(event["cat"] for event in events if event["ph"] == "X")
    assert slices["collective"] == watched.archive.collectives(EVERY).num_rows
    assert slices["pipeline"] >= 2 * (4 * 2 + 1)
    assert any(event["ph"] == "C" and event["name"].startswith("tokens per expert") for event in events)
    messages = [event for event in events if event["ph"] == "s" and event["cat"] == "p2p"]
    assert len(messages) >= 8
