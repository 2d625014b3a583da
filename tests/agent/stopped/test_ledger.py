"""Who launched what: fed in pieces as the agent polls, twice over where operations stay open, with gaps."""

import numpy as np

from ranksight.agent.stopped.ledger import Key, Ledger, key_of
from tests.support.stops import WORLD, call, group


def feed(ledger: Ledger, rank: int, first: int, steps: list[int], marks: list[int] | None = None) -> None:
    seq = np.arange(first, first + len(steps), dtype=np.int64)
    mark = np.array(marks or [7] * len(steps), np.uint64)
    ledger.add(rank, WORLD, seq, mark, np.array(steps, np.int64), seq * 1000)


def test_missing_ranks_are_those_observed_that_have_not_launched() -> None:
    ledger = Ledger()
    feed(ledger, 0, 0, [0, 0, 1])
    feed(ledger, 2, 0, [0, 0])
    third = call(0, 2, 1.0)
    assert ledger.missing(third, [0, 1, 2]) == (1, 2)  # 3 is not observed: nothing is known about it
    assert ledger.missing(third, [0]) == ()
    assert ledger.launched(Key("0", 0, 1), 2) and not ledger.launched(Key("0", 0, 2), 2)
    assert ledger.count(WORLD, 2) == 2


def test_feeding_the_same_rows_again_changes_nothing() -> None:
    ledger = Ledger()
    for rank in range(4):
        for _ in range(3):
            feed(ledger, rank, 0, [0, 0, 1, 1, 2, 2])
    assert ledger.disputes == {} and ledger.shifts() == ()


def test_a_step_may_be_split_over_polls() -> None:
    ledger = Ledger()
    for first, steps in ((0, [0, 0]), (2, [0, 1]), (4, [1, 1, 2]), (7, [2, 2, 3])):
        for rank in range(4):
            feed(ledger, rank, first, steps)
        assert ledger.shifts() == ()


def test_a_dispute_needs_two_launches_with_other_fingerprints() -> None:
    ledger = Ledger()
    feed(ledger, 0, 0, [0, 0, 0], [1, 2, 0])
    assert ledger.disputes == {}
    feed(ledger, 1, 0, [0, 0, 0], [1, 3, 5])
    assert list(ledger.disputes) == [Key("0", 0, 1)]


def test_disputes_are_bounded() -> None:
    ledger = Ledger()
    feed(ledger, 0, 0, [0] * 500, [1] * 500)
    feed(ledger, 1, 0, [0] * 500, [2] * 500)
    assert [key.seq for key in ledger.disputes] == [*range(8), *range(492, 500)]


def test_groups_that_threads_of_their_own_use_are_not_compared_by_step() -> None:
    ledger = Ledger()
    for rank in range(4):
        steps = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] if rank else [0, 0, 1, 2, 2, 3, 3, 4, 4]
        seq = np.arange(len(steps), dtype=np.int64)
        ledger.add(rank, WORLD, seq, np.full(len(steps), 7, np.uint64), np.array(steps, np.int64), seq, helpers=True)
    assert ledger.shifts() == ()


def test_sends_pair_with_receives_by_peer_tag_and_order() -> None:
    ends = group(2, 3, name="pp")
    sent = call(2, 4, 1.0, op="send", members=ends, peer=1, tag=9)
    received = call(3, 4, 1.0, op="recv", members=ends, peer=0, tag=9)
    assert key_of(sent) == key_of(received) == Key("pp", 0, 4, 2, 3, 9)
    ledger = Ledger.of([sent])
    assert ledger.missing(sent, [2, 3]) == (3,)
    assert Ledger.of([sent, received]).missing(sent, [2, 3]) == ()
    anybody = call(3, 0, 1.0, op="recv_any_source", members=ends)
    assert Ledger.of([anybody]).members(anybody) == ()


def test_names_are_used_again_after_a_group_is_destroyed() -> None:
    ledger = Ledger()
    feed(ledger, 0, 0, [0, 0])
    again = call(0, 0, 1.0, members=type(WORLD)("0", "", 1, WORLD.ranks, 4))
    assert not ledger.launched(key_of(again), 0)
