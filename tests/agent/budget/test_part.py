"""Two synthetic ranks with a known timeline: every second is in its part, and the parts add up to the steps."""

import threading
from typing import Any

import pytest

from ranksight.agent.budget.rank import PARTS
from ranksight.hooks.wire import EventKind, Phase
from tests.agent.conftest import MS, Host
from tests.support.ring_writer import RingWriter

STEPS = 3


def step(host: Host, writers: list[RingWriter], groups: list[int], number: int) -> None:
    """100 ms: data 10, forward 20, backward 30, all-reduce to 90; rank 1 comes 20 ms after rank 0, then 10 ms transfer."""
    begin = host.now
    for rank, writer in enumerate(writers):
        late = 20 * MS * rank
        events = writer.ring.events
        at = begin
        for phase, length in ((Phase.DATA, 10 * MS), (Phase.FORWARD, 20 * MS), (Phase.BACKWARD, 30 * MS + late)):
            events.write(EventKind.PHASE, at, at + length, step=number, code=phase)
            at += length
        events.write(EventKind.GC, begin + 12 * MS, begin + 15 * MS, step=number, code=2)
        writer.collective(
            groups[rank], number, at, return_ns=begin + 90 * MS, complete_ns=begin + 90 * MS,
            step=number, thread=threading.get_native_id(),
        )  # fmt: skip
        events.write(EventKind.STEP, begin, begin + 100 * MS, step=number)
        writer.ring["step"] = number + 1
    host.poll(0.1)


@pytest.fixture
def report(host: Host) -> dict[str, Any]:
    writers = [host.rank(rank, 2, local_world_size=2) for rank in range(2)]
    groups = [writer.group("dp0", 2, rank, ranks=[0, 1], axis="dp") for rank, writer in enumerate(writers)]
    for number in range(STEPS):
        step(host, writers, groups, number)
    host.poll(4.0)
    found: dict[str, Any] = host.observer.report_sections()
    found["text"] = host.observer.exposition()[0].decode()
    return found


def test_every_second_is_in_its_part(report: dict[str, Any]) -> None:
    first, last = report["budget"]["per_rank"]
    assert (first["rank"], first["steps"], last["rank"]) == (0, STEPS, 1)
    milliseconds = {
        row["rank"]: {part: round(1e3 * seconds / STEPS, 6) for part, seconds in row["seconds"].items()} for row in (first, last)
    }
    common = {"data": 10, "forward": 17, "pause": 3, "optimizer": 0, "bubble": 0, "checkpoint": 0, "other": 10}
    assert milliseconds[0] == common | {"backward": 30, "wait": 20, "transfer": 10}
    assert milliseconds[1] == common | {"backward": 50, "wait": 0, "transfer": 10}
    assert first["unsplit_seconds"] == 0
    assert first["other_fraction"] == pytest.approx(0.1)


def test_distributions_by_rank_and_axis(report: dict[str, Any]) -> None:
    first = report["budget"]["per_rank"][0]
    assert set(first["distribution"]) == set(PARTS)
    assert first["distribution"]["wait"]["max"] == pytest.approx(0.020)
    dp = report["budget"]["per_axis"]["dp"]
    assert dp["seconds"]["wait"] == pytest.approx(0.020 * STEPS)
    assert dp["seconds"]["transfer"] == pytest.approx(2 * 0.010 * STEPS)


def test_metrics(report: dict[str, Any]) -> None:
    assert 'ranksight_step_part_seconds_total{rank="0",part="wait"} 0.06' in report["text"]
    assert 'ranksight_step_part_tail_seconds{rank="1",part="backward",window="1m",tail="max"} 0.05' in report["text"]
