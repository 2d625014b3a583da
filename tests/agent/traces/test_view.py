"""Which operation held up which: a receive waits for its send, the first to come for the last."""

from __future__ import annotations

from typing import Any

import pytest

from ranksight.agent.traces.view import view
from tests.support.step_views import STEP, event, operation, table, tables


def causes(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Kind, rank that held up, rank that was held up."""
    seen = view(STEP, table("collectives", rows), table("events", []))
    return [(cause.kind, seen.operations[cause.source].rank, seen.operations[cause.target].rank) for cause in seen.causes]


def test_a_step_holds_what_was_recorded_of_it() -> None:
    seen = view(STEP, *tables())
    assert seen.ranks == (0, 1)
    assert sorted(item.op for item in seen.operations) == ["all_reduce", "all_reduce", "recv", "send"]
    assert {item.kind for item in seen.spans} == {"step", "data", "phase", "pipeline", "gc"}
    assert {item.kind for item in seen.moments} == {"batch", "experts", "loss", "checksum"}
    assert sorted((cause.kind, cause.source) for cause in seen.causes) == [("last", 3), ("p2p", 1)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [operation(rank, "all_reduce", begin, 9, members="0,1,2") for rank, begin in ((0, 1), (1, 5), (2, 2))],
            [("last", 1, 0), ("last", 1, 2)],
            id="all that came before it wait for the last",
        ),
        pytest.param(
            [operation(0, "broadcast", 1, 2), operation(1, "broadcast", 5, 6)],
            [],
            id="a root that was gone before the last one came did not wait",
        ),
        pytest.param([operation(0, "all_reduce", 1, 9)], [], id="who comes last is unknown without all members"),
        pytest.param(
            [operation(0, "all_reduce", 1, 9), operation(1, "all_reduce", 5, 9, host="h1")],
            [],
            id="nor is it said across two clocks",
        ),
        pytest.param(
            [operation(0, "all_reduce", 1, None), operation(1, "all_reduce", 5, None)],
            [("last", 1, 0)],
            id="an operation that never ended was waited in",
        ),
        pytest.param(
            [operation(0, "send", 1, 2, peer=1, tag=1), operation(1, "recv", 0, 2, peer=0, tag=2)],
            [],
            id="another tag is another message",
        ),
        pytest.param(
            [operation(0, "send", 1, 2, peer=1), operation(1, "recv", 0, 2, peer=0, host="h1")],
            [("p2p", 0, 1)],
            id="a message needs no clock",
        ),
    ],
)  # fmt: skip
def test_causes(rows: list[dict[str, Any]], expected: list[tuple[str, int, int]]) -> None:
    assert causes(rows) == expected


def test_a_step_that_was_done_again_shows_the_last_time() -> None:
    rows = [event(0, "step", 0, 10), event(0, "step", 50, 60, generation=1)]
    seen = view(STEP, table("collectives", []), table("events", rows))
    assert [span.begin_ns for span in seen.spans] == [50_000_000]


def test_clocks_are_moved_to_that_of_the_calendar() -> None:
    rows = [event(0, "step", 0, 10), event(1, "step", 0, 10, host="h1")]
    seen = view(STEP, table("collectives", []), table("events", rows), {"h0": 5, "h1": 7})
    assert [(span.host, span.begin_ns, span.end_ns) for span in seen.spans] == [
        ("h0", 5, 10_000_005), ("h1", 7, 10_000_007)
    ]  # fmt: skip
