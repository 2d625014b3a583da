"""All ranks leave after the same step, whenever the stop comes and however slowly the agent works."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from ranksight.agent.policy.agreement import SETTLE_NS, Agreement, Stage
from ranksight.agent.policy.control import ControlBlock
from ranksight.hooks.wire import StopAction
from tests.support import stopping_ranks
from tests.support.ring_writer import RingWriter

STOP = StopAction.STOP
STOPS, WORLD = 200, 4


class SlowBlock(ControlBlock):
    """The agent is held up between any two of its stores."""

    chance = random.Random(7)

    def __setitem__(self, name: str, value: int) -> None:
        if self.chance.random() < 0.2:
            time.sleep(self.chance.random() * 0.004)
        super().__setitem__(name, value)


def test_200_stops_at_random_moments_split_no_job(tmp_path: Path) -> None:
    chance = random.Random(1)
    again = killed = 0
    with stopping_ranks.start(tmp_path, WORLD, STOPS) as ranks:
        for number in range(STOPS):
            blocks = {rank: SlowBlock(path) for rank, path in ranks.rings(number, WORLD).items()}
            time.sleep(chance.random() * 0.01)
            agreement = Agreement(blocks, STOP, margin=chance.choice((1, 1, 2, 40)))
            while agreement.tick(time.monotonic_ns()) is not Stage.COMMITTED:
                if chance.random() < 0.02:  # killed and started again
                    agreement, killed = Agreement(blocks, STOP, margin=1), killed + 1
            again += agreement.proposals > 1
            left = dict(ranks.results.get(timeout=stopping_ranks.PATIENCE_S)[1:] for _ in range(WORLD))
            assert left == dict.fromkeys(range(WORLD), agreement.step), f"stop {number}"
            for block in blocks.values():
                block.close()
    assert again and killed  # the hard cases did happen


@pytest.fixture
def ranks(tmp_path: Path) -> list[RingWriter]:
    return [RingWriter(tmp_path, rank, 2) for rank in range(2)]


def agreement(ranks: list[RingWriter], margin: int = 2, step_seconds: float = 0.0) -> Agreement:
    return Agreement({rank: ControlBlock(writer.path) for rank, writer in enumerate(ranks)}, STOP, margin, step_seconds)


def set_steps(ranks: list[RingWriter], *steps: int) -> None:
    for writer, step in zip(ranks, steps, strict=True):
        writer.ring["step"] = step


def test_nothing_is_proposed_before_all_ranks_are_in_a_step(ranks: list[RingWriter]) -> None:
    set_steps(ranks, 5, -1)
    stop = agreement(ranks)
    assert stop.tick(1) is Stage.WAITING
    assert ranks[0].ring["stop_request"] == 0
    set_steps(ranks, 5, 0)
    assert stop.tick(2) is Stage.PROPOSED
    assert [writer.ring["stop_after_step"] for writer in ranks] == [7, 7]
    assert [writer.ring["stop_committed"] for writer in ranks] == [0, 0]


def test_a_proposal_that_comes_too_late_is_replaced_by_a_later_one(ranks: list[RingWriter]) -> None:
    set_steps(ranks, 5, 4)
    stop = agreement(ranks)
    stop.tick(1)
    assert stop.tick(1 + SETTLE_NS // 2) is Stage.PROPOSED  # too early to tell
    set_steps(ranks, 7, 6)  # one has begun the step
    assert stop.tick(1 + SETTLE_NS) is Stage.PROPOSED
    assert (stop.step, stop.proposals, ranks[0].ring["stop_request"]) == (11, 2, 2)
    assert stop.tick(1 + 2 * SETTLE_NS) is Stage.COMMITTED
    assert [writer.ring["stop_committed"] for writer in ranks] == [2, 2]


def test_the_margin_grows_with_the_speed_of_the_steps(ranks: list[RingWriter]) -> None:
    set_steps(ranks, 100, 100)
    stop = agreement(ranks, step_seconds=0.001)
    stop.tick(1)
    assert stop.step == 400


def test_a_commit_that_an_agent_before_began_is_finished(ranks: list[RingWriter]) -> None:
    set_steps(ranks, 5, 5)
    stop = agreement(ranks)
    stop.tick(1)
    ranks[1].ring["stop_committed"] = 1  # killed before it came to rank 0
    again = agreement(ranks)
    assert (again.stage, again.step) == (Stage.COMMITTED, 7)
    assert [writer.ring["stop_committed"] for writer in ranks] == [1, 1]


def test_who_has_seen_it_and_who_has_left(ranks: list[RingWriter]) -> None:
    set_steps(ranks, 5, 5)
    stop = agreement(ranks)
    assert not stop.acknowledged
    stop.tick(1)
    ranks[1].ring["stop_acknowledged"] = 1
    ranks[0].ring["stopped_after_step"] = 7
    assert stop.acknowledged == (1,)
    assert stop.left == {0: 7}
