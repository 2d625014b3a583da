"""A step as spans: one tree, ids that other hosts can work out, links for causes, and all that goes in and comes out."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from ranksight.agent.export.trace_id import trace_id
from ranksight.agent.traces.spans import RankFacts, Spans
from ranksight.agent.traces.view import view
from tests.support.step_views import MS, STEP, event, operation, table, tables

FACTS = {
    rank: RankFacts(2, rank, {"dp": (rank, 2), "mine": (0, 1)}, {"dp": (0, 1)}) for rank in range(2)
}  # fmt: skip


def spans_of(collectives: Any, events: Any, run_id: str = "run-7") -> list[ReadableSpan]:
    return Spans(run_id, {"service.name": "training"}).of(view(STEP, collectives, events, {"h0": 10 * MS}), FACTS, "slow")


@pytest.fixture(scope="module")
def spans() -> list[ReadableSpan]:
    return spans_of(*tables())


def one(spans: list[ReadableSpan], name: str, rank: int | None = None) -> ReadableSpan:
    (found,) = (
        span for span in spans if span.name == name and (rank is None or (span.attributes or {}).get("dl.rank") == rank)
    )
    return found


def number(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def test_the_spans_are_one_tree_in_the_trace_of_the_step(spans: list[ReadableSpan]) -> None:
    assert {span.context.trace_id for span in spans if span.context} == {int(trace_id("run-7", STEP), 16)}
    assert len({number(span) for span in spans}) == len(spans) == 1 + 2 * (1 + 5 + 2)
    root = one(spans, f"step {STEP}")
    assert root.parent is None
    assert dict(root.attributes or {}) == {"dl.iteration": STEP, "ranksight.kept_because": "slow", "nemo.run.id": "run-7"}
    for rank in range(2):
        own = one(spans, f"rank {rank}")
        assert own.parent is not None and own.parent.span_id == number(root)
        children = sorted(span.name for span in spans if span.parent and span.parent.span_id == number(own))
        message = "recv" if rank else "send"
        assert children == sorted(["all_reduce", "data", "forward", "gc", "pipeline forward", "pipeline schedule", message])


def test_times_are_those_of_the_calendar(spans: list[ReadableSpan]) -> None:
    late = one(spans, "all_reduce", 1)
    assert (late.start_time, late.end_time) == (90 * MS, 96 * MS)


def test_a_rank_says_where_it_stands_and_what_went_in_and_came_out(spans: list[ReadableSpan]) -> None:
    assert dict(one(spans, "rank 1").attributes or {}) == {
        "dl.rank": 1, "dl.iteration": STEP, "host.name": "h0", "dl.world_size": 2, "dl.local_rank": 1,
        "dl.data_parallel.rank": 1, "dl.data_parallel.size": 2, "dl.mine.rank": 0, "dl.mine.size": 1,
        "dl.batch.samples": 8, "dl.batch.tokens": 512, "dl.batch.cursor": 64, "dl.batch.fingerprint": 4711,
        "dl.loss": 2.5, "dl.checksum": ("0.0:0000000300000011",),
    }  # fmt: skip


def test_an_operation_says_what_it_was(spans: list[ReadableSpan]) -> None:
    assert dict(one(spans, "send").attributes or {}) == {
        "dl.rank": 0, "dl.iteration": STEP, "dl.process_group": "0", "dl.collective.axis": "dp", "dl.collective.op": "send",
        "dl.collective.seq": 0, "dl.collective.bytes": 4096, "dl.collective.dtype": "float32", "dl.collective.peer": 1,
        "dl.microbatch_id": 0, "dl.pipeline_parallel.stage": 0, "dl.call_site": "train.py:9 main",
    }  # fmt: skip


def test_causes_are_links(spans: list[ReadableSpan]) -> None:
    links = {
        (span.name, (span.attributes or {})["dl.rank"]): [(link.context.span_id, dict(link.attributes or {})) for link in span.links]
        for span in spans if span.links
    }  # fmt: skip
    assert links == {
        ("recv", 1): [(number(one(spans, "send")), {"dl.link": "message", "dl.rank": 0})],
        ("all_reduce", 0): [(number(one(spans, "all_reduce", 1)), {"dl.link": "waited_for", "dl.rank": 1})],
    }


def test_two_hosts_write_one_trace_and_link_to_each_other(spans: list[ReadableSpan]) -> None:
    collectives, events = (item.filter(item["rank"].to_numpy() == 1) for item in tables())
    other = spans_of(collectives, events)
    assert [span for span in other if span.parent is None] == []
    assert {number(span) for span in other} <= {number(span) for span in spans}
    (link,) = one(other, "recv").links
    assert link.context.span_id == number(one(spans, "send"))


def test_another_run_is_another_trace(spans: list[ReadableSpan]) -> None:
    assert {number(span) for span in spans_of(*tables(), "run-8")}.isdisjoint({number(span) for span in spans})


def test_an_operation_that_never_completed_is_an_error_that_ends_with_the_step() -> None:
    found = spans_of(table("collectives", [operation(0, "all_reduce", 1, None)]), table("events", [event(0, "step", 0, 9)]))
    hung = one(found, "all_reduce")
    assert hung.status.status_code is StatusCode.ERROR and hung.status.description == "never completed"
    assert hung.end_time == one(found, f"step {STEP}").end_time


def test_the_environment_cannot_sample_a_kept_step_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert len(spans_of(*tables())) == 17


def test_the_partition_says_who_is_with_whom() -> None:
    found = spans_of(table("collectives", []), table("events", [event(0, "phase", 0, 9, what="partition", code=10)]))
    assert (one(found, "partition").attributes or {})["dl.partition.dp"] == (0, 1)
