"""Hangs, and what looks like one: the culprit is the rank that waits for nobody, once its phase has no excuse."""

from typing import Any

import pytest

from ranksight.agent.detectors import hang
from ranksight.agent.findings import Finding
from ranksight.agent.stopped.facts import JobFacts
from ranksight.agent.stopped.limits import Limits
from tests.support.stops import FAILED, WORLD, call, group, job, rank

PAIR, TENSOR, DATA = group(0, 1, name="1"), group(0, 1, name="tp"), group(1, 3, name="dp")
EXCHANGE = group(2, 3, name="2")


def only(facts: JobFacts) -> Finding:
    found = hang.detect(facts, Limits())
    assert len(found) == 1
    return found[0]


def waiting_for(late: int, since: float, size: int = 4, **more: Any) -> list[Any]:
    """All but one have come to all_reduce #20."""
    members = group(*range(size))
    return [call(r, 20, since, members=members, **more) for r in range(size) if r != late] + [
        call(r, 19, since - 1, since - 0.9, members=members, **more) for r in range(size)
    ]


@pytest.mark.parametrize("size", [2, 4, 64])
def test_the_rank_that_has_not_come_is_named(size: int) -> None:
    finding = only(job(waiting_for(1, 90.0, size), rank(1, phase="data", step=10), size=size))
    assert (finding.kind, finding.ranks, finding.group_seq, finding.op) == ("rank_not_joined", (1,), 20, "all_reduce")
    assert finding.detection_seconds == pytest.approx(10.0)
    assert (finding.first_step, finding.detected_step, finding.hosts) == (10, 10, ("h0",))
    assert "phase data" in finding.message
    assert finding.call_site == "train.py:12 step"


def test_two_late_ranks_are_one_finding() -> None:
    calls = [call(r, 20, 90.0) for r in (0, 3)]
    assert only(job(calls)).ranks == (1, 2)


def test_the_late_rank_that_waits_elsewhere_is_followed_to_the_busy_one() -> None:
    # 0 waits for 1 in tp, 1 waits for 3 in dp, 3 computes; 2 waits for all in the world.
    calls = [call(0, 5, 90.0, members=TENSOR), call(1, 7, 89.0, members=DATA), call(2, 30, 91.0)]
    finding = only(job(calls))
    assert (finding.kind, finding.ranks, finding.group) == ("rank_not_joined", (3,), "dp")


def test_groups_in_opposite_order_are_a_cycle() -> None:
    calls = [call(0, 60, 90.0, members=PAIR), call(1, 120, 90.0), call(2, 120, 90.0), call(3, 120, 90.0)]
    finding = only(job(calls))
    assert (finding.kind, finding.ranks) == ("deadlock", (0, 1))
    assert "group '1'" in finding.message and "group '0'" in finding.message


def test_two_receives_without_a_send_are_a_cycle() -> None:
    calls = [
        call(2, 4, 90.0, op="recv", members=EXCHANGE, peer=1),
        call(3, 4, 90.0, op="recv", members=EXCHANGE, peer=0),
        call(0, 9, 90.0),
        call(1, 9, 90.0),
    ]
    finding = only(job(calls))
    assert (finding.kind, finding.ranks) == ("deadlock", (2, 3))
    assert "recv #4 from rank 3 to rank 2" in finding.message


def test_a_ring_of_receives_is_one_cycle() -> None:
    calls = [call(r, 4, 90.0, op="recv", peer=(r + 1) % 4) for r in range(4)]
    assert only(job(calls)).ranks == (0, 1, 2, 3)


def test_an_unwaited_send_holds_nobody_up() -> None:
    sends = [call(r, 4, 50.0, op="send", peer=r ^ 1, waiting=False) for r in range(4)]
    assert hang.detect(job(sends), Limits()) == ()


def test_a_send_whose_receive_was_posted_waits_for_no_rank() -> None:
    calls = [call(0, 4, 90.0, op="send", peer=1), call(1, 4, 90.0, op="recv", peer=0)]
    finding = only(job(calls))
    assert (finding.kind, finding.ranks) == ("collective_stuck", (0, 1))


def test_all_have_joined_and_nothing_moves() -> None:
    finding = only(job([call(r, 20, 90.0) for r in range(4)]))
    assert (finding.kind, finding.ranks) == ("collective_stuck", ())


def test_a_rank_that_ended_early_ran_out_of_data() -> None:
    left = rank(3, alive=False, life="exiting", gone_at=95.0, exit_status=0, step=90)
    finding = only(job(waiting_for(3, 95.0), left))
    assert (finding.kind, finding.ranks) == ("data_exhausted", (3,))


def test_the_errors_of_those_that_waited_do_not_hide_the_rank_that_ended_early() -> None:
    left = rank(3, alive=False, life="exiting", gone_at=95.0, step=90)
    error = "RuntimeError: [enforce fail at pair.cc] Connection closed by peer [127.0.0.1]:3"
    victims = [rank(r, alive=False, life="exception", last_error=error, error_at=95.1, gone_at=95.4) for r in range(3)]
    finding = only(job([call(r, 20, 95.0, flags=FAILED) for r in range(3)], left, *victims, now=95.5))
    assert (finding.kind, finding.ranks) == ("data_exhausted", (3,))


def test_a_timeout_names_the_rank_that_had_not_come_at_once() -> None:
    error = "RuntimeError: Timed out waiting 5000ms for recv operation to complete"
    victims = [rank(r, life="exception", last_error=error, error_at=97.0) for r in (0, 1, 2)]
    cleaned = rank(3, alive=False, gone_at=97.5)
    facts = job([call(r, 20, 92.0, flags=FAILED) for r in range(3)], *victims, cleaned, now=97.6)
    assert (only(facts).kind, only(facts).ranks) == ("rank_not_joined", (3,))


HEALTHY = {
    "between two steps": (waiting_for(1, 99.0), [], 0.05),
    "slow but moving, long steps": (waiting_for(1, 75.0), [], 9.0),
    "first step builds kernels": (waiting_for(1, 60.0, step=0), [rank(1, step=0, phase="forward")], 0.05),
    "no step is over yet": (waiting_for(1, 60.0, step=5), [rank(1, step=5)], None),
    "compile of another shape": (waiting_for(1, 60.0), [rank(1, phase="compile")], 0.05),
    "long checkpoint of rank 0": (waiting_for(0, 70.0, op="barrier", shape=()), [rank(0, phase="checkpoint")], 0.05),
    "evaluation on rank 0 alone": (waiting_for(0, 70.0), [rank(0, phase="evaluation")], 0.05),
    "reading a checkpoint": (waiting_for(2, 70.0), [rank(2, phase="load")], 0.05),
    "idle pipeline stages": (
        [call(3, 8, 96.0, op="recv", peer=2), call(2, 8, 97.0, op="recv", peer=1), call(1, 8, 98.0, op="recv", peer=0)],
        [],
        0.05,
    ),
    "members on another host": ([call(r, 9, 50.0, members=group(*range(8))) for r in range(4)], [], 0.05),
    "members unknown": ([call(r, 9, 50.0, members=group(name="x")) for r in range(2)], [], 0.05),
    "a frozen rank is not ours": (waiting_for(1, 80.0), [rank(1, process_state="T", stopped_since_at=80.0)], 0.05),
    "a dead rank is not ours": (waiting_for(1, 80.0), [rank(1, alive=False, gone_at=80.0, exit_status=-9)], 0.05),
    "a rank that failed is not ours": (
        waiting_for(1, 80.0),
        [rank(1, life="exception", last_error="MemoryError: 12 GiB", error_at=80.0)],
        0.05,
    ),
    "all left after the last barrier": (
        [call(r, 9, 50.0, op="barrier", shape=(), waiting=False) for r in range(4)],
        [rank(r, alive=False, life="exiting", gone_at=51.0) for r in range(4)],
        0.05,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_hang(name: str) -> None:
    calls, ranks, p99 = HEALTHY[name]
    assert hang.detect(job(calls, *ranks, p99=p99), Limits()) == ()


def test_ranks_are_read_one_after_the_other() -> None:
    # Rank 0 was read before it launched #20, the others after: for two milliseconds all seem to wait for it.
    assert hang.detect(job(waiting_for(0, 99.998)), Limits()) == ()


def test_a_wrong_call_explains_the_wait_for_it() -> None:
    calls = [call(r, 20, 80.0) for r in (0, 1, 3)] + [call(2, 20, 80.0, shape=(4,))]
    assert hang.detect(job(calls), Limits()) == ()


def test_overlapped_collectives_of_a_busy_rank_wait_for_the_late_one() -> None:
    # DDP waits in C++: no wait is seen, only operations in flight. Rank 2 is inside its backward.
    calls = [call(r, seq, 85.0 + seq / 10, waiting=False) for r in (0, 1, 3) for seq in (20, 21, 22)]
    finding = only(job(calls, rank(2, phase="backward")))
    assert (finding.kind, finding.ranks, finding.group_seq) == ("rank_not_joined", (2,), 20)


def test_the_world_is_not_stuck_when_a_member_only_completed_earlier() -> None:
    # The root of a broadcast leaves early and computes; the others receive.
    calls = [call(0, 20, 99.0, 99.1, op="broadcast", peer=0)] + [call(r, 20, 99.0, op="broadcast", peer=0) for r in (1, 2, 3)]
    assert hang.detect(job(calls), Limits()) == ()


def test_those_that_receive_a_broadcast_wait_for_its_root_and_not_for_each_other() -> None:
    calls = [call(r, 20, 90.0, op="broadcast", peer=2) for r in (0, 3)]
    finding = only(job(calls, rank(1, phase="checkpoint")))
    assert finding.ranks == (2,)


def test_a_wait_has_no_limit_of_its_own_under_long_steps() -> None:
    assert only(job(waiting_for(1, 60.0), p99=13.0)).ranks == (1,)
    assert hang.detect(job(waiting_for(1, 62.0), p99=13.0), Limits()) == ()
    assert WORLD.size == 4
