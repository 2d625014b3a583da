"""stop.json: the order to stop, between the agent, which decides, and `ranksight run`, which owns the launcher.

    agent: Order -> write      `ranksight run`: read -> ends the launcher from `end_by_ns` on, exits with `exit_code`

It is on disk before anything is done about it, so either side can be killed and the other one carries on. Needs the
standard library alone, because `ranksight run` stands in front of every job.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ranksight.agent import files
from ranksight.agent.errors import RunDirError

STOP_FILE = "stop.json"


class State(StrEnum):
    """How far a stop is."""

    LEAVING = "leaving"  # the ranks are to leave after one step
    ENDING = "ending"  # evidence is taken, then the processes are ended
    LEFT = "left"  # they left by themselves
    ENDED = "ended"  # they were ended
    COMPLETED = "completed"  # the job was through before the step came

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in {State.LEFT, State.ENDED, State.COMPLETED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A stop. `end_by_ns` (CLOCK_MONOTONIC) is when processes that are still there are asked to end, then killed."""

    state: State
    action: str
    reason: str
    decided_ns: int
    end_by_ns: int
    grace_seconds: float
    exit_code: int
    step: int | None = None
    decision: dict[str, Any] = field(default_factory=dict)
    acknowledged: tuple[int, ...] = ()
    left: dict[str, int] = field(default_factory=dict)
    evidence_dir: str | None = None


def write(run_dir: Path, order: Order) -> None:
    """Put an order down; RunDirError when it can't be."""
    files.write_json(run_dir / STOP_FILE, asdict(order))


def read(run_dir: Path) -> Order | None:
    """The order of a run; None when there is none, or none that can be read."""
    try:
        found = files.read_json(run_dir / STOP_FILE)
        return Order(**found | {"state": State(found["state"]), "acknowledged": tuple(found["acknowledged"])})
    except (RunDirError, KeyError, TypeError, ValueError):
        return None


def exit_code(run_dir: Path, launcher_code: int) -> int:
    """How `ranksight run` exits: as the launcher did, unless the job was stopped."""
    order = read(run_dir)
    return launcher_code if order is None or order.state is State.COMPLETED else order.exit_code
