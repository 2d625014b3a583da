"""The demo's faults are the trainer's, in a form that its eight ranks accept; nothing is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranksight.agent.errors import RanksightError
from ranksight.agent.launch import demo, demo_faults
from ranksight.trainer import options as trainer
from ranksight.trainer.faults.kinds import Fault

DEMO = demo.DemoOptions(Path("runs/x"), 40)


def arguments(options: demo.DemoOptions) -> tuple[str, ...]:
    line = demo.command(options)
    return line[line.index("ranksight.trainer") + 1 :]


def test_there_is_a_demo_of_every_fault_that_one_run_can_have() -> None:
    assert set(demo_faults.FAULTS) == {fault.value for fault in Fault} - {Fault.RESUME_MISMATCH.value}


@pytest.mark.parametrize("name", demo_faults.FAULTS)
def test_the_trainer_takes_the_fault_as_the_demo_says_it(name: str) -> None:
    config = trainer.parse(arguments(demo.DemoOptions(Path("runs/x"), 40, name)))
    (injection,) = config.faults
    assert injection.fault is Fault(name)
    assert config.plan.world_size == demo.RANKS and config.train.timeout == demo_faults.HUNG_SECONDS


def test_what_the_user_says_is_taken_as_it_is() -> None:
    config = trainer.parse(arguments(demo.DemoOptions(Path("runs/x"), 40, "straggler:rank=6,size=0.25")))
    (injection,) = config.faults
    assert (injection.rank, injection.step, injection.size) == (6, 0, 0.25)


def test_all_goes_well_unless_asked() -> None:
    assert trainer.parse(arguments(DEMO)).faults == ()


def test_a_fault_that_there_is_not_is_an_error_that_says_which_there_are() -> None:
    with pytest.raises(RanksightError, match=r"'stragler': there is no such fault; did you mean straggler\? Known are kill, "):
        demo.command(demo.DemoOptions(Path("runs/x"), 40, "stragler"))
