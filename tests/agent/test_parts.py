"""A part that fails is put out of work and named; the others go on."""

from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.observer import Observer
from ranksight.agent.parts import Part, Parts, Surroundings


class Works(Part):
    """Counts its polls."""

    rolls = 0

    def roll(self, observer: Observer, now_ns: int) -> None:
        self.rolls += 1

    def sections(self, observer: Observer) -> dict[str, Any]:
        return {"works": self.rolls}


class Fails(Part):
    """Raises in every poll."""

    def roll(self, observer: Observer, now_ns: int) -> None:
        raise ZeroDivisionError("by design")

    def sections(self, observer: Observer) -> dict[str, Any]:
        return {"fails": True}


class CannotBegin(Part):
    """Raises when it is made."""

    def __init__(self, surroundings: Surroundings) -> None:
        raise OSError("no room")


@pytest.fixture
def observer(tmp_path: Path) -> Observer:
    return Observer(tmp_path)


def test_a_failing_part_is_named_and_costs_only_its_own_answers(observer: Observer) -> None:
    parts = Parts(Surroundings("r"), [lambda _: Fails(), lambda _: Works(), CannotBegin])
    assert parts.failed == {"CannotBegin": "OSError: no room"}
    assert parts.sections(observer) == {"fails": True, "works": 0}
    parts.roll(observer, 1)
    parts.roll(observer, 2)
    assert parts.failed["Fails"] == "ZeroDivisionError: by design"
    assert parts.sections(observer) == {"works": 2}


def test_a_part_can_be_found_by_its_class() -> None:
    parts = Parts(Surroundings("r"), [lambda _: Works()])
    assert isinstance(parts.find(Works), Works)
    assert parts.find(Fails) is None
