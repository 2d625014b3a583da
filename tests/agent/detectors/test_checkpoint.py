"""Checkpoint faults: a write that is far slower than usual, a job that does not go on where its checkpoint ends."""

from __future__ import annotations

import pytest

from ranksight.agent.detectors.checkpoint import Write, incomplete, resumed_wrongly, stall


def writes(*seconds: float) -> list[Write]:
    return [Write(10 * (number + 1), value) for number, value in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "step"),
    [
        ((2.0, 2.0, 30.0), 30),
        ((2.0, 2.0, 9.9), None),  # five times as long, but not long
        ((60.0, 60.0, 90.0), None),  # long, but not five times as long
        ((2.0, 30.0), None),  # what is usual is not known yet
        ((2.0, 2.0, 2.0, 12.1, 2.0), 40),
        ((), None),
    ],
)
def test_a_write_is_slow_against_those_before_it(seconds: tuple[float, ...], step: int | None) -> None:
    found = stall(writes(*seconds))
    assert [finding.first_step for finding in found] == ([] if step is None else [step])


def test_a_write_in_progress_counts_and_a_rank_alone_is_named() -> None:
    (found,) = stall([*writes(1.0, 1.0), Write(30, 40.0, rank=3, ended=False)])
    assert found.ranks == (3,)
    assert found.message == "The checkpoint after 30 steps has taken 40.0 s on rank 3; 1.0 s was usual."
    assert found.cost_seconds == 39.0


@pytest.mark.parametrize(
    ("first", "cursor", "before", "says"),
    [
        (40, 640, {}, None),
        (40, None, {}, None),
        (0, 0, {}, "The checkpoint has 40 steps, but the job went on with step 0."),
        (41, 656, {}, "The checkpoint has 40 steps, but the job went on with step 41."),
        (40, 0, {}, "Step 40 reads data from sample 0 on, where the saved job would read 640."),
        (40, 640, {40: 648}, "Step 40 reads data from sample 640 on, where the saved job would read 648."),
    ],
)
def test_a_job_must_go_on_with_the_saved_step_and_data(
    first: int, cursor: int | None, before: dict[int, int], says: str | None
) -> None:
    found = resumed_wrongly(first, cursor, 40, 640, before)
    assert (found.message if found else None) == says


def test_an_incomplete_checkpoint_is_named_with_the_reason() -> None:
    found = incomplete("/c/step-40", 40, "COMPLETE is missing")
    assert (found.kind, found.first_step, found.evidence["path"]) == ("checkpoint_incomplete", 40, "/c/step-40")
    assert found.message == "The checkpoint /c/step-40 can't be used: COMPLETE is missing."
