"""Phases: spans that never overlap, with the innermost one in force."""

from pathlib import Path

import pytest

from ranksight.hooks.phases import Phases
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.ring import Ring, Sizes, create
from ranksight.hooks.wire import Phase
from tests.support.ring_events import read


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    made = create(tmp_path, Sizes(16, 64, 4096, 4096))
    made["phase_begin_ns"] = 0
    return made


def spans(ring: Ring) -> list[tuple[str, int, int]]:
    return [(Phase(event.code).name, event.begin_ns, event.end_ns) for event in read(ring.path).of("PHASE")]


def test_spans_are_cut_where_another_phase_takes_over(ring: Ring) -> None:
    phases = Phases(Recorder(ring))
    phases.set_flow(Phase.FORWARD, 10)
    outer = phases.push(Phase.CHECKPOINT, 20)
    inner = phases.push(Phase.LOAD, 30)
    assert ring["phase"] == Phase.LOAD
    phases.pop(inner, 40)
    phases.pop(outer, 50)
    assert (ring["phase"], ring["phase_begin_ns"]) == (Phase.FORWARD, 50)
    phases.set_flow(Phase.OTHER, 60)
    phases.set_flow(Phase.BACKWARD, 70)
    phases.set_flow(Phase.OTHER, 80)
    assert spans(ring) == [
        ("STARTUP", 0, 10), ("FORWARD", 10, 20), ("CHECKPOINT", 20, 30), ("LOAD", 30, 40), ("CHECKPOINT", 40, 50),
        ("FORWARD", 50, 60), ("BACKWARD", 70, 80),
    ]  # fmt: skip


def test_evaluation_hides_the_flow_but_not_an_overlay(ring: Ring) -> None:
    phases = Phases(Recorder(ring))
    phases.set_flow(Phase.OTHER, 1)
    phases.set_evaluating(True, 2)
    phases.set_flow(Phase.FORWARD, 3)
    depth = phases.push(Phase.CHECKPOINT, 4)
    phases.set_evaluating(False, 5)
    phases.pop(depth, 6)
    assert spans(ring) == [("STARTUP", 0, 1), ("EVALUATION", 2, 4), ("CHECKPOINT", 4, 6)]
    assert phases.in_force is Phase.FORWARD


def test_an_overlay_left_behind_ends_with_the_one_around_it(ring: Ring) -> None:
    phases = Phases(Recorder(ring))
    outer = phases.push(Phase.PARTITION, 1)
    phases.push(Phase.COMPILE, 2)
    phases.pop(outer, 3)
    assert phases.in_force is Phase.STARTUP
