"""The step state machine on literal sequences; no torch."""

from pathlib import Path

import pytest

from ranksight.hooks.phases import Phases
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.ring import Sizes, create
from ranksight.hooks.steps import Steps
from ranksight.hooks.wire import Phase
from tests.support.ring_events import Said, read

ADAM, OTHER = 1, 2


class Rank:
    """A rank that lives by a clock of whole nanoseconds, one for each thing that happens."""

    def __init__(self, folder: Path) -> None:
        self.now = 0
        self.ring = create(folder, Sizes(16, 256, 4096, 4096))
        self.ring["phase_begin_ns"] = 0
        self.recorder = Recorder(self.ring, lambda: self.now)
        self.phases = Phases(self.recorder)
        self.flushed: list[int] = []
        self.steps = Steps(self.recorder, self.phases, self.flushed.append, cpu_seconds=lambda: self.now / 1e9)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def make(self, key: int) -> None:
        self.steps.optimizer_made(key, self.tick())

    def backward(self) -> None:
        self.steps.backward_begins(self.tick())
        self.steps.backward_ends(self.tick())

    def step(self, key: int) -> None:
        self.steps.optimizer_begins(key, self.tick())
        self.steps.optimizer_ends(key, self.tick())

    def said(self) -> Said:
        return read(self.ring.path)

    def numbers(self) -> list[int]:
        return [event.step for event in self.said().of("STEP")]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_steps_count_from_0_and_touch_each_other(rank: Rank) -> None:
    assert rank.ring["step"] == -1
    rank.make(ADAM)
    assert rank.ring["step"] == 0
    for index in range(3):
        assert rank.ring["step"] == index
        rank.steps.work(rank.tick())
        rank.backward()
        assert rank.ring["step"] == index
        rank.step(ADAM)
    spans = rank.said().spans("STEP")
    assert [step for step, _, _ in spans] == [0, 1, 2]
    assert [begin for _, begin, _ in spans[1:]] == [end for _, _, end in spans[:-1]]
    assert rank.ring["step_begin_ns"] == spans[-1][2]
    assert [event.values[0] for event in rank.said().of("STEP")] == [pytest.approx((e - b) / 1e9) for _, b, e in spans]


def test_step_0_begins_with_training_not_with_the_optimizer(rank: Rank) -> None:
    rank.make(ADAM)
    rank.now = 1000
    rank.steps.work(1000)
    rank.backward()
    rank.step(ADAM)
    assert rank.said().spans("STEP")[0][1] == 1000
    assert rank.phases.flow is Phase.OTHER


def test_accumulation_is_one_step(rank: Rank) -> None:
    rank.make(ADAM)
    for _ in range(2):
        for _ in range(4):
            rank.steps.work(rank.tick())
            rank.backward()
        rank.step(ADAM)
    assert rank.numbers() == [0, 1]


def test_two_optimizers_end_one_step_together(rank: Rank) -> None:
    rank.make(ADAM)
    rank.make(OTHER)
    for _ in range(3):
        rank.backward()
        rank.step(ADAM)
        rank.backward()
        rank.step(OTHER)
    assert rank.numbers() == [0, 1, 2]
    assert rank.flushed == [0, 0, 0, 1, 1, 1, 2, 2, 2]  # after each optimizer, and at the end of the step


def test_an_optimizer_inside_another_is_a_part_of_it(rank: Rank) -> None:
    rank.make(ADAM)
    rank.make(OTHER)
    for _ in range(3):
        rank.steps.optimizer_begins(ADAM, rank.tick())
        rank.step(OTHER)
        rank.steps.optimizer_ends(ADAM, rank.tick())
    assert rank.numbers() == [0, 1, 2]


def test_a_step_that_raised_is_started_afresh(rank: Rank) -> None:
    rank.make(ADAM)
    rank.steps.optimizer_begins(ADAM, rank.tick())  # raised: there is no end
    rank.step(ADAM)
    rank.step(ADAM)
    assert rank.numbers() == [0, 1]


def test_an_idle_optimizer_costs_one_late_boundary(rank: Rank) -> None:
    rank.make(ADAM)
    rank.make(OTHER)
    for _ in range(3):
        rank.step(ADAM)
    spans = rank.said().spans("STEP")
    assert [step for step, _, _ in spans] == [0, 1, 2]
    assert spans[1][1] == spans[0][2]  # the late boundary lies where it should have been


def test_optimizers_that_step_in_backward_end_the_step_with_it(rank: Rank) -> None:
    rank.make(ADAM)
    rank.make(OTHER)
    for _ in range(2):
        rank.steps.backward_begins(rank.tick())
        rank.step(OTHER)
        rank.step(ADAM)
        assert rank.ring["step"] == len(rank.numbers())
        rank.steps.backward_ends(rank.tick())
    assert rank.numbers() == [0, 1]


def test_no_optimizer_ends_steps_where_the_next_one_begins(rank: Rank) -> None:
    for _ in range(3):
        rank.steps.work(rank.tick())
        rank.backward()
        rank.tick()  # gradients reduced by hand
    assert rank.numbers() == [0, 1]
    assert rank.ring["step"] == 2


def test_no_optimizer_a_schedule_is_one_step(rank: Rank) -> None:
    for _ in range(3):
        rank.steps.schedule(rank.tick(), begins=True)
        for _ in range(4):
            rank.backward()
        rank.steps.schedule(rank.tick(), begins=False)
    assert rank.numbers() == [0, 1]


def test_zeroed_gradients_end_a_skipped_step(rank: Rank) -> None:
    rank.make(ADAM)
    for index in range(4):
        rank.steps.gradients_zeroed(rank.tick())
        rank.backward()
        if index != 1:  # a gradient that is not finite: this step() is left out
            rank.step(ADAM)
    assert rank.numbers() == [0, 1, 2, 3]


def test_a_closure_zeroes_gradients_inside_the_step(rank: Rank) -> None:
    rank.make(ADAM)
    for _ in range(2):
        rank.steps.optimizer_begins(ADAM, rank.tick())
        for _ in range(3):
            rank.steps.gradients_zeroed(rank.tick())
            rank.backward()
        rank.steps.optimizer_ends(ADAM, rank.tick())
    assert rank.numbers() == [0, 1]


def test_the_trainer_may_say_where_steps_end(rank: Rank) -> None:
    rank.make(ADAM)
    for index in range(3):
        rank.backward()
        rank.step(ADAM)
        assert rank.steps.record(None, 64.0, rank.tick()) == index
    assert rank.numbers() == [0, 1, 2]
    assert rank.said().of("STEP")[2].values[1] == 64.0


def test_the_trainer_may_count_from_another_number(rank: Rank) -> None:
    rank.make(ADAM)
    rank.steps.count_from(100, rank.tick())
    for _ in range(2):
        rank.backward()
        rank.step(ADAM)
        assert rank.ring["step"] == 100 + len(rank.numbers())
        rank.steps.record(None, None, rank.tick())
    assert rank.numbers() == [100, 101]


def test_a_failing_callback_is_counted_and_stops_nothing(rank: Rank) -> None:
    def fail(step: int, now: int) -> None:
        raise RuntimeError("broken")

    ended: list[int] = []
    rank.steps.at_end += [fail, lambda step, now: ended.append(step)]
    rank.make(ADAM)
    rank.step(ADAM)
    rank.step(ADAM)
    assert ended == [0, 1]
    assert rank.ring["hooks_errors"] == 2
    assert rank.said().notes() == ["hooks: end of step: RuntimeError: broken"]
