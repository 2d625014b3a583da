"""What a rank does about a request: wait for the answer at the step in question, leave, or go on."""

from pathlib import Path

import pytest

from ranksight.hooks import ring, update_allowed
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.ring import Ring
from ranksight.hooks.stop import HOLD_S, Stop
from ranksight.hooks.wire import StopAction
from tests.support.ring_writer import SMALL


class Rank:
    """A rank whose clock stands still but for its waits; `during_wait` is what happens in one."""

    def __init__(self, folder: Path) -> None:
        self.ring: Ring = ring.create(folder, SMALL)
        self.now, self.waits = 0, 0
        self.stop = Stop(Recorder(self.ring, lambda: self.now), lambda _: None, self._wait)
        self.during_wait: list[tuple[str, int]] = []

    def propose(self, after: int, action: StopAction = StopAction.STOP) -> None:
        self.ring["stop_after_step"], self.ring["stop_action"] = after, action
        self.ring["stop_request"] += 1

    def end(self, step: int) -> bool:
        """End a step; whether the hooks leave."""
        self.stop.step_ended(step, self.now)
        try:
            self.stop.leave(step, self.now)
        except SystemExit as left:
            return left.code == 0
        return False

    def _wait(self, seconds: float) -> None:
        self.waits += 1
        self.now += round(seconds * 1e9)
        for name, value in self.during_wait:
            self.ring[name] = value


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_a_proposal_is_acknowledged_and_not_followed(rank: Rank) -> None:
    rank.propose(after=3)
    assert not rank.end(1)
    assert (rank.ring["stop_acknowledged"], rank.waits) == (1, 0)
    assert rank.stop.requested(2) is None


def test_an_agreed_step_is_the_last_one(rank: Rank) -> None:
    rank.propose(after=3)
    rank.ring["stop_committed"] = 1
    assert rank.stop.requested(1) == 3
    assert not rank.end(2)
    assert rank.end(3)
    rank.stop.leaving()
    assert rank.ring["stopped_after_step"] == 3


def test_a_rank_at_the_step_waits_for_the_answer(rank: Rank) -> None:
    rank.propose(after=3)
    rank.during_wait = [("stop_committed", 1)]
    assert rank.end(3)
    assert rank.waits == 1


def test_a_rank_at_the_step_goes_on_when_a_later_one_is_proposed(rank: Rank) -> None:
    rank.propose(after=3)
    rank.during_wait = [("stop_after_step", 9), ("stop_request", 2)]
    assert not rank.end(3)
    assert (rank.waits, rank.ring["stop_acknowledged"]) == (1, 2)


def test_a_rank_does_not_wait_for_ever(rank: Rank) -> None:
    rank.propose(after=3)
    assert not rank.end(3)
    assert rank.now >= HOLD_S * 1e9
    waited = rank.waits
    assert not rank.end(4)
    assert rank.waits == waited
    rank.stop.leaving()
    assert rank.ring["stopped_after_step"] == -1


@pytest.mark.parametrize(("action", "saved"), [(StopAction.CHECKPOINT_AND_STOP, [3]), (StopAction.STOP, [])])
def test_callbacks_save_before_the_hooks_leave(rank: Rank, action: StopAction, saved: list[int]) -> None:
    called: list[int] = []

    def fails(step: int) -> None:
        raise OSError("no room")

    rank.stop.callbacks += [fails, called.append]
    rank.propose(after=3, action=action)
    rank.ring["stop_committed"] = 1
    assert not rank.end(2)
    assert rank.end(3)
    assert called == saved
    assert rank.ring["hooks_errors"] == len(saved)


@pytest.mark.parametrize(("action", "saves"), [(StopAction.CHECKPOINT_AND_STOP, True), (StopAction.STOP, False)])
def test_a_stop_because_memory_may_be_wrong_saves_nothing(rank: Rank, action: StopAction, saves: bool) -> None:
    rank.propose(after=3, action=action)
    assert rank.stop.saves(3)
    rank.ring["stop_committed"] = 1
    assert rank.stop.saves(2)
    assert rank.stop.saves(3) is saves


def test_a_trainer_that_asks_leaves_by_itself(rank: Rank) -> None:
    rank.stop.asked = True
    rank.propose(after=3)
    rank.ring["stop_committed"] = 1
    assert not rank.end(3)
    assert rank.stop.requested(4) == 3


@pytest.mark.parametrize(("values", "allowed"), [((), True), ((1.0, 2), True), ((1.0, float("nan")), False), ((float("inf"),), False)])
def test_an_update_on_numbers_that_are_not_finite_is_not_allowed(values: tuple[float, ...], allowed: bool) -> None:
    assert update_allowed(*values) is allowed
