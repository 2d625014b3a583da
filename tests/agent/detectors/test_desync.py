"""Ranks that launched different things: named with the odd one out, also where nothing fails; legal differences never."""

from typing import Any

import pytest

from ranksight.agent.detectors import mismatch, skipped, splits
from ranksight.agent.findings import Finding
from ranksight.agent.stopped.facts import JobFacts
from ranksight.agent.stopped.limits import Limits
from ranksight.hooks.records import Collective
from tests.support.stops import FAILED, NOW, call, group, job, rank


def found(facts: JobFacts) -> list[Finding]:
    detectors = (mismatch.detect, skipped.detect, splits.detect)
    return [finding for detect in detectors for _, finding in detect(facts, Limits())]


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"shape": (4,)}, "shape"),
    "op": ({"op": "barrier", "shape": ()}, "op"),
    "dtype": ({"dtype": "int64"}, "dtype"),
    "reduce op": ({"reduce_op": "max"}, "reduce op"),
    "root": ({"peer": 2}, "root"),
}


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("name", DIFFERENT)
def test_the_odd_rank_out_is_named_with_what_differs(name: str, odd: int) -> None:
    change, differs = DIFFERENT[name]
    calls = [call(r, 20, 97.0 + r / 100, **(change if r == odd else {})) for r in range(4)]
    (finding,) = found(job(calls))
    assert (finding.kind, finding.ranks, finding.group_seq) == ("collective_mismatch", (odd,), 20)
    assert differs in finding.evidence["differs"]
    assert finding.detection_seconds == pytest.approx(3.0, abs=0.05)
    assert finding.first_step == 10


def test_a_mismatch_that_completed_is_still_one() -> None:
    calls = [call(r, 20, 97.0, 97.1, op="broadcast", shape=(430 if r == 0 else 410,), peer=0, step=-1) for r in range(4)]
    (finding,) = found(job(calls))
    assert (finding.kind, finding.ranks) == ("collective_mismatch", (0,))


def test_the_first_dispute_of_a_group_comes_first() -> None:
    calls = [call(r, 20 + k, 97.0 + k, shape=(4 + r if r == 1 else 4,)) for r in range(4) for k in range(2)]
    entries = mismatch.detect(job(calls), Limits())
    assert min(entries)[1].group_seq == 20


def test_those_on_their_way_are_waited_for_but_not_for_ever() -> None:
    calls = [call(0, 20, 97.0), call(1, 20, 97.0, shape=(4,))]
    assert found(job(calls, now=97.5)) == []
    (finding,) = found(job(calls, now=98.5))
    assert finding.ranks == (0, 1)  # one against one: nobody can say who is wrong
    assert "none has a majority" in finding.message


def test_a_left_out_call_of_another_shape_is_recognised_by_what_follows() -> None:
    calls = [call(r, 20, 97.0, shape=(12,)) for r in (0, 2, 3)] + [call(r, 21, 97.1, shape=(16,)) for r in (0, 2, 3)]
    calls.append(call(1, 20, 97.0, shape=(16,)))
    (finding,) = [f for f in found(job(calls)) if f.group_seq == 20]
    assert (finding.kind, finding.ranks) == ("collective_skipped", (1,))
    assert "left out all_reduce float32 [12]" in finding.message


def test_between_two_ranks_the_one_that_ran_ahead_is_named() -> None:
    pair = group(0, 1)
    calls = [call(0, 20, 97.0, members=pair, shape=(12,)), call(0, 21, 97.0, members=pair, shape=(16,))]
    calls.append(call(1, 20, 97.0, members=pair, shape=(16,)))
    (finding,) = found(job(calls, size=2))
    assert (finding.kind, finding.ranks) == ("collective_skipped", (1,))


def steps(
    ranks: int, last: int, per_step: int, changed: dict[tuple[int, int], int], same_shape: bool = True, **more: Any
) -> list[Collective]:
    """`per_step` calls in each step; `changed` says of (rank, step) how many there are instead."""
    calls = []
    members = group(*range(ranks))
    for r in range(ranks):
        seq = 0
        for step in range(last + 1):
            for k in range(changed.get((r, step), per_step)):
                at = 10.0 + step + k / 10 + r / 1000
                shape = (8,) if same_shape else (8 + k,)
                calls.append(call(r, seq, at, at + 0.01, members=members, step=step, shape=shape, **more))
                seq += 1
    return calls


@pytest.mark.parametrize(("ranks", "per_step"), [(2, 4), (4, 1), (4, 4), (8, 3), (64, 2)])
def test_a_call_fewer_is_found_though_nothing_fails(ranks: int, per_step: int) -> None:
    (finding,) = found(job(steps(ranks, 12, per_step, {(1, 7): per_step - 1}), size=ranks))
    assert (finding.kind, finding.ranks, finding.first_step) == ("collective_skipped", (1,), 7)
    assert "1 collective fewer" in finding.message


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_call_more_is_found_though_nothing_fails(ranks: int) -> None:
    (finding,) = found(job(steps(ranks, 12, 3, {(0, 7): 5}), size=ranks))
    assert (finding.kind, finding.ranks, finding.first_step) == ("collective_mismatch", (0,), 7)
    assert "2 collectives more" in finding.message


def test_two_later_steps_must_agree_unless_the_rank_is_gone() -> None:
    calls = steps(4, 8, 4, {(1, 7): 3})
    assert found(job(calls)) == []
    (finding,) = found(job(calls, rank(1, alive=False, life="exiting", gone_at=99.0)))
    assert finding.kind == "collective_skipped"


def test_the_call_that_was_left_out_is_named_by_its_line() -> None:
    calls = [
        call(r, 2 * step + k, 10.0 + step, 10.1 + step, step=step, site=f"train.py:{k} f")
        for r in (0, 2, 3)
        for step in range(6)
        for k in (0, 1)
    ]
    seq = 0
    for step in range(6):
        for k in (0, 1):
            if (step, k) != (2, 0):
                calls.append(call(1, seq, 10.0 + step, 10.1 + step, step=step, site=f"train.py:{k} f"))
                seq += 1
    (finding,) = found(job(calls))
    assert (finding.kind, finding.ranks, finding.call_site) == ("collective_skipped", (1,), "train.py:0 f")


LEGAL: dict[str, list[Collective]] = {
    "agreement": steps(4, 12, 4, {}),
    "steps with other numbers of calls, on all ranks": steps(4, 12, 4, {(r, 7): 9 for r in range(4)}),
    "uneven all-to-all": [
        call(r, 5, 90.0, 90.1, op="all_to_all_single", shape=(10 + r, 2), send_splits=(1, 2, 3, 4 + r), recv_splits=(r,) * 4)
        for r in range(4)
    ],
    "sends of any size": [call(0, 5, 90.0, op="send", peer=1, shape=(3,)), call(1, 5, 90.0, op="recv", peer=0, shape=(9,))],
    "one rank is ahead": [call(0, k, 90.0 + k, shape=(k,)) for k in range(8)] + [call(1, 0, 99.0, shape=(0,))],
    "other lines of the program": [call(r, 5, 90.0, site=f"train.py:{10 + (r == 0)} f") for r in range(4)],
    "a rank that counts steps from one": [
        call(r, 2 * step + k, 10.0 + step, 11.0 + step, step=step + (r == 2)) for r in range(4) for step in range(9) for k in (0, 1)
    ],
    "records that were lost": [one for one in steps(4, 12, 4, {}) if not (one.rank == 1 and 17 < one.group_seq < 30)],
    "an optimizer that left a step out": [
        call(r, 2 * step + k, 10.0 + step, 11.0 + step, step=step - (r == 2 and step > 4))
        for r in range(4)
        for step in range(12)
        for k in (0, 1)
    ],
    "a helper thread's calls fall now into one step, now into the next": [
        call(r, step, 10.0 + step, 11.0 + step, step=step + (r == 1 and step % 3 == 1)) for r in range(4) for step in range(12)
    ],
}


def gathers(*done: float | None, flags: int = 0) -> list[Collective]:
    """One all_gather of as many ranks, the first with another size than the others."""
    return [
        call(r, 5, 97.0, end, op="all_gather", shape=(3 + (r > 0),), reduce_op=None, flags=flags) for r, end in enumerate(done)
    ]


def test_uneven_gathers_are_wrong_only_where_they_do_not_complete() -> None:
    assert found(job(gathers(98.0, 98.0, 98.0, 98.0))) == []
    assert found(job(gathers(98.0, None, None, None))) == []
    late = found(job(gathers(None, None, None, None), now=101.5))
    failed = found(job(gathers(None, None, None, None, flags=FAILED)))
    aborted = found(job(gathers(None, None, None, None), rank(1, alive=False, gone_at=98.0)))
    for (finding,) in (late, failed, aborted):
        assert (finding.kind, finding.ranks) == ("collective_mismatch", (0,))


@pytest.mark.parametrize("name", LEGAL)
def test_no_disagreement(name: str) -> None:
    assert found(job(LEGAL[name], now=NOW + 50)) == []


def exchange(number: int, send: tuple[int, ...], receive: tuple[int, ...] = (2, 2, 2)) -> Collective:
    return call(
        number, 5, 90.0, op="all_to_all_single", shape=(6,), members=group(0, 1, 2), send_splits=send, recv_splits=receive
    )


def test_inconsistent_splits_name_the_rank_that_is_wrong_towards_most() -> None:
    good = (2, 2, 2)
    (finding,) = found(job([exchange(0, good), exchange(1, (3, 2, 1)), exchange(2, good)], size=3))
    assert (finding.kind, finding.ranks) == ("collective_mismatch", (1,))
    assert finding.evidence["pairs"] == [[1, 0], [1, 2]]
    assert "rank 1 sends 3 rows to rank 0, which expects 2" in finding.message


def test_consistent_splits_that_take_long_are_no_mismatch() -> None:
    calls = [exchange(0, (0, 1, 5), (0, 4, 2)), exchange(1, (4, 0, 2), (1, 0, 5)), exchange(2, (2, 5, 0), (5, 2, 0))]
    assert found(job(calls, size=3)) == []
