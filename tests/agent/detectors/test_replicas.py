"""Replicas are learned from agreement, and named when they leave it."""

import pytest

from ranksight.agent.detectors.replicas import Check, Replicas, judge


def check(step: int, *sums: int) -> Check:
    return Check(step, {rank: (float(value), 0.0) for rank, value in enumerate(sums)})


AGREEING = [check(step, step, step, step, step) for step in (0, 5, 10, 15)]


def test_one_that_leaves_three_is_named_at_the_second_check() -> None:
    first = [*AGREEING, check(20, 20, 20, 99, 20)]
    assert judge(first) is None  # a check may fall between two updates
    assert judge([*first, check(25, 25, 25, 98, 25)]) == (frozenset({0, 1, 2, 3}), frozenset({2}))


def test_of_two_nobody_knows_which() -> None:
    pair = [check(step, step, step) for step in (0, 5, 10)]
    assert judge([*pair, check(15, 15, 99), check(20, 20, 98)]) == (frozenset({0, 1}), frozenset({0, 1}))


@pytest.mark.parametrize(
    "checks",
    [
        AGREEING,  # all well
        [check(step, step, step + 1, step + 2, step + 3) for step in range(0, 40, 5)],  # shards: never the same
        [check(step, 7, 7, 7, 7) for step in range(0, 30, 5)] + [check(30, 7, 8, 7, 7), check(35, 7, 8, 7, 7)],  # idle
        [*AGREEING, check(20, 20, 20, 99, 20), check(25, 25, 25, 25, 25)],  # together again
    ],
    ids=["healthy", "sharded", "never updated", "once"],
)
def test_what_is_no_desync(checks: list[Check]) -> None:
    assert judge(checks) is None


def test_replicas_within_tensor_parallel_shards_are_told_apart() -> None:
    # ranks 0 and 2, and ranks 1 and 3, hold the same shard; rank 3 drifts away from rank 1
    good = [check(step, step, step + 1, step, step + 1) for step in (0, 5, 10)]
    assert judge([*good, check(15, 15, 16, 15, 99), check(20, 20, 21, 20, 98)]) == (frozenset({1, 3}), frozenset({1, 3}))


def test_checks_are_judged_when_every_rank_has_said_its_own() -> None:
    replicas = Replicas()
    found = []
    for step in range(0, 40, 5):
        for rank in range(4):
            drifted = rank == 2 and step >= 25
            finding = replicas.add(rank, 0, 0, step, (float(step + drifted), 0.0), world=4)
            if finding:
                found.append((rank, finding))
    rank, finding = found[0]
    assert rank == 3  # the last to say
    assert (finding.ranks, finding.first_step, finding.detected_step) == ((2,), 25, 30)
    assert finding.evidence["last_step_in_agreement"] == 20
