"""Small timelines whose replays can be computed by hand. Seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.whatif import TraceError, WhatIf, analyse, read_trace
from tests.agent.whatif.traces import Literal, one_forward_one_backward, rows, write


@pytest.fixture
def whatif(tmp_path: Path) -> Any:
    def run(table: list[dict[str, Any]]) -> WhatIf:
        return analyse(read_trace(write(tmp_path / "trace.parquet", table)))

    return run


# Two replicas, no pipeline; replica 1 has a forward of 3 s where replica 0 has one of 1 s. The reduction moves data for
# 1 s once both are there.
SLOW_REPLICA = (
    (0, 0, "F", 0, 0, 1), (0, 0, "B", 0, 1, 3), (0, 0, "RS", -1, 3, 6), (0, 0, "OPT", -1, 6, 7),
    (1, 0, "F", 0, 0, 3), (1, 0, "B", 0, 3, 5), (1, 0, "RS", -1, 5, 6), (1, 0, "OPT", -1, 6, 7),
)  # fmt: skip


def test_a_slow_replica(whatif: Any) -> None:
    found = whatif(rows(*SLOW_REPLICA))
    assert (found.recorded_seconds, found.replayed_seconds, found.ideal_seconds) == (7, 7, 6)
    assert found.slowdown == pytest.approx(7 / 6) and found.wasted_share == pytest.approx(1 / 7)
    assert [(effect.name, effect.only_seconds, effect.without_seconds) for effect in found.by_dp] == [("1", 7, 6), ("0", 6, 7)]
    by_type = {effect.name: (effect.only_seconds, effect.regained) for effect in found.by_type}
    assert by_type["forward-compute"] == (7, 1.0)
    assert by_type["grads-reduce-scatter"] == by_type["backward-compute"] == (6, 0.0)
    assert (found.slowest_workers.name, found.slowest_workers.regained) == ("1", 1.0)


# Two stages, two microbatches, 1F1B; stage 1 takes 2 s for what takes 1 s on stage 0. Transfers take no time.
SLOW_LAST_STAGE = (
    (0, 0, "F", 0, 0, 1), (0, 0, "SF", 0, 1, 1), (0, 0, "F", 1, 1, 2), (0, 0, "SF", 1, 2, 3),
    (0, 0, "RB", 0, 1, 5), (0, 0, "B", 0, 5, 6), (0, 0, "RB", 1, 6, 9), (0, 0, "B", 1, 9, 10),
    (0, 1, "RF", 0, 0, 1), (0, 1, "F", 0, 1, 3), (0, 1, "B", 0, 3, 5), (0, 1, "SB", 0, 5, 5),
    (0, 1, "RF", 1, 3, 3), (0, 1, "F", 1, 5, 7), (0, 1, "B", 1, 7, 9), (0, 1, "SB", 1, 9, 9),
)  # fmt: skip


def test_a_slow_last_stage(whatif: Any) -> None:
    found = whatif(rows(*SLOW_LAST_STAGE))
    assert (found.replayed_seconds, found.ideal_seconds) == (10, 9)
    worst = found.by_stage[0]
    assert worst == found.last_stage
    assert (worst.name, worst.only_seconds, worst.without_seconds) == ("1", 11, 8)
    assert (worst.added, worst.regained) == (2.0, 2.0)
    assert found.slowest_workers.name == "100"


def test_times_of_transfer_are_ideal_at_their_median(whatif: Any) -> None:
    """One of three gathers is slow by 4 s; the ideal doesn't know it."""
    table = []
    for step, seconds in enumerate((1, 1, 5)):
        gathered = 100 * step + seconds
        table += rows(
            (0, 0, "AG", -1, 100 * step, gathered), (0, 0, "F", 0, gathered, gathered + 1), (0, 0, "B", 0, gathered + 1, gathered + 3),
            step=step,
        )  # fmt: skip
    found = whatif(table)
    assert found.step_replayed_seconds == (4, 4, 8) and found.ideal_seconds == 4
    (gather,) = [effect for effect in found.by_type if effect.name == "params-all-gather"]
    assert gather.step_slowdowns == (1, 1, 2) and gather.regained == 1


# Two stages with two chunks each and one microbatch; every compute takes 1 s. The receive of the model's first chunk is
# missing; the send after its last chunk and the receive before its last backward are noted, but moved nothing.
TWO_CHUNKS = (
    (0, 0, "F", 0, 0, 1, 0), (0, 0, "SF", -1, 1, 1), (0, 0, "RF", -1, 1, 2), (0, 0, "F", 0, 2, 3, 2), (0, 0, "SF", -1, 3, 3),
    (0, 0, "RB", -1, 3, 5), (0, 0, "B", 0, 5, 6, 2), (0, 0, "SB", -1, 6, 6), (0, 0, "RB", -1, 6, 7), (0, 0, "B", 0, 7, 8, 0),
    (0, 0, "SB", -1, 8, 8),
    (0, 1, "RF", -1, 0, 1), (0, 1, "F", 0, 1, 2, 1), (0, 1, "SF", -1, 2, 2), (0, 1, "RF", -1, 2, 3), (0, 1, "F", 0, 3, 4, 3),
    (0, 1, "SF", -1, 4, 4), (0, 1, "RB", -1, 4, 4), (0, 1, "B", 0, 4, 5, 3), (0, 1, "SB", -1, 5, 5), (0, 1, "RB", -1, 5, 6),
    (0, 1, "B", 0, 6, 7, 1), (0, 1, "SB", -1, 7, 7),
)  # fmt: skip


def test_chunks_of_an_interleaved_schedule(whatif: Any) -> None:
    found = whatif(rows(*TWO_CHUNKS, stages=2))
    assert found.replayed_seconds == found.ideal_seconds == 8
    assert found.slowdown == 1
    assert {effect.regained for effect in found.by_stage} == {None}  # nothing is lost, so nothing has a share of it


def test_overlapped_reductions_do_not_lengthen_the_step(whatif: Any) -> None:
    """With a reduction of the rest at the end, the others start after their chunk's last backward."""
    found = whatif(rows(
        (0, 0, "F", 0, 0, 1, 0), (0, 0, "F", 0, 1, 2, 1), (0, 0, "B", 0, 2, 4, 1), (0, 0, "RS", -1, 4, 6, 1),
        (0, 0, "B", 0, 4, 7, 0), (0, 0, "RS", -1, 7, 9, 0), (0, 0, "GC", -1, 7, 8), (0, 0, "SEP", -1, 9, 10),
        (0, 0, "OPT", -1, 10, 11),
    ))  # fmt: skip
    assert found.replayed_seconds == 11


def test_delays_between_operations_are_not_replayed(whatif: Any) -> None:
    found = whatif(rows((0, 0, "F", 0, 0, 1), (0, 0, "B", 0, 3, 5)))
    assert (found.recorded_seconds, found.replayed_seconds) == (5, 3)
    assert found.launch_slowdown == pytest.approx(5 / 3)


def test_a_step_that_was_cut_off_is_left_out_and_named(whatif: Any) -> None:
    table = [row for step in (4, 5, 6) for row in rows(*SLOW_REPLICA, step=step)]
    found = whatif(table[:-1])
    assert (found.steps, found.steps_left_out) == ((4, 5), (6,))


def test_a_job_of_64_workers_without_stragglers(whatif: Any) -> None:
    """1F1B: (m + p - 1)(t_F + t_B), then 10 ms for reduction, clip and optimizer."""
    found = whatif(one_forward_one_backward(stages=8, dp_size=8, microbatches=8, steps=2))
    assert found.recorded_seconds == pytest.approx(15 * 0.03 + 0.010)
    assert found.replayed_seconds == pytest.approx(found.recorded_seconds)
    assert found.slowdown == pytest.approx(1)
    assert len(found.by_worker) == 64


def changed(table: tuple[Literal, ...], at: int, *row: Any) -> list[dict[str, Any]]:
    return rows(*table[:at], *([row] if row else []), *table[at + 1 :])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (changed(SLOW_LAST_STAGE, 1), r"stage 0 has 1 forward-send for 2 forward-compute; expected one each, or none"),
        (
            [row for row in rows(*SLOW_LAST_STAGE) if row["optype"] != "backward-recv"],
            r"backward-send of microbatch 0, from chunk 1 of the model, has no backward-recv",
        ),
        (changed(SLOW_LAST_STAGE, 9, 0, 1, "F", 7, 1, 3), r"forward-send of microbatch 0, from chunk 0"),
        (
            rows(*SLOW_REPLICA) + rows(SLOW_REPLICA[0]),
            r"two rows for forward-compute number 0 of step 0, dp 0, stage 0; tensor parallel",
        ),
        (rows(*SLOW_REPLICA[:4], *((2, *row[1:]) for row in SLOW_REPLICA[4:])), r"dp ranks are 0, 2; expected every number from 0"),
        (rows(*SLOW_REPLICA[:-1]), r"step 0: the dp ranks have \[4, 3\] operations; expected as many each"),
        (changed(SLOW_REPLICA, 7, 1, 0, "GC", -1, 6, 7), r"dp rank 0 has no gc number 0 of step 0, dp 1, stage 0"),
        (rows((0, 0, "OPT", -1, 0, 1)), r"stage 0 has neither forward-compute nor backward-compute"),
        (rows((0, 0, "F", 0, 0, 0)), r"all operations together take 0 seconds"),
        ([row | {"rank": row["start_ts"]} for row in rows(*SLOW_REPLICA)], r"ranks 0 and 6 are both at dp 0, stage 0"),
        # Stage 0 runs its backward before the forward that stage 1 needs for it.
        (
            rows(
                (0, 0, "RB", 0, 0, 3), (0, 0, "B", 0, 3, 4), (0, 0, "F", 0, 4, 5), (0, 0, "SF", 0, 5, 5),
                (0, 1, "RF", 0, 0, 1), (0, 1, "F", 0, 1, 2), (0, 1, "B", 0, 2, 3), (0, 1, "SB", 0, 3, 3),
            ),
            r"operations wait for each other in a circle: .*expected a trace that can have happened",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed(whatif: Any, table: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        whatif(table)
