"""One future step after which every rank leaves, agreed through the control blocks and without a collective.

    propose   N = newest step of any rank + margin -> all blocks      a rank that gets to N waits for the answer
    settle    some milliseconds, so that each rank's last store of its step can be seen
    commit    when no rank has begun N: each sees the proposal before it gets there, so all leave after N -> all blocks
              otherwise again, with a new request and a larger margin

Why it can't split the ranks. A rank leaves only after a committed request, and passes N only when it has not seen the
request. Whoever had not begun N when the agent looked, after storing the request, will look at its block at N and find
it there. So either all ranks are held by N or the agent does not commit. An agent that comes back after it was killed
finishes a commit that one rank has, and replaces a proposal that none has. It does not matter how steps are made of
microbatches, stages or optimizers: only that all ranks count the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ranksight.agent.policy.control import ControlBlock
from ranksight.hooks.wire import StopAction

SETTLE_NS = 5_000_000
AHEAD_NS = 300_000_000  # the proposal should reach every rank this long before its step, however fast steps are
_LARGEST_MARGIN = 1 << 20


class Stage(StrEnum):
    """How far the agreement is."""

    WAITING = "waiting"  # not all ranks are in a step yet
    PROPOSED = "proposed"
    COMMITTED = "committed"


class Agreement:
    """One stop of the ranks whose blocks these are. `step_seconds` is about what a step takes, 0 when not known."""

    def __init__(
        self, blocks: Mapping[int, ControlBlock], action: StopAction, margin: int, step_seconds: float = 0.0
    ) -> None:
        self._blocks, self._action = dict(blocks), action
        steps = round(AHEAD_NS / 1e9 / step_seconds) if step_seconds > 0 else 0
        self._margin = min(max(margin, steps), _LARGEST_MARGIN)
        self._proposed_ns = 0
        self._request = max((block["stop_request"] for block in self._blocks.values()), default=0)
        self.stage = Stage.WAITING
        self.step: int | None = None
        self.proposals = 0
        self._finish_commit()

    @property
    def acknowledged(self) -> tuple[int, ...]:
        """Ranks that have seen the request."""
        return tuple(
            rank for rank, block in sorted(self._blocks.items()) if block["stop_acknowledged"] == self._request > 0
        )

    @property
    def left(self) -> dict[int, int]:
        """Step after which each rank that has left did so."""
        return {
            rank: block["stopped_after_step"]
            for rank, block in sorted(self._blocks.items())
            if block["stopped_after_step"] >= 0
        }

    def tick(self, now_ns: int) -> Stage:
        """Take the next step towards the agreement, if it is time for it."""
        if self.stage is Stage.WAITING:
            self._propose(now_ns)
        elif self.stage is Stage.PROPOSED and now_ns - self._proposed_ns >= SETTLE_NS:
            assert self.step is not None
            if max(block["step"] for block in self._blocks.values()) < self.step:
                self._commit()
            else:
                self._margin = min(2 * self._margin, _LARGEST_MARGIN)
                self._propose(now_ns)
        return self.stage

    def withdraw(self) -> None:
        """Take a proposal back that is not agreed: no rank shall wait for an answer."""
        if self.stage is Stage.PROPOSED:
            for block in self._blocks.values():
                block["stop_action"] = StopAction.NONE
            self.stage = Stage.WAITING

    def _propose(self, now_ns: int) -> None:
        steps = [block["step"] for block in self._blocks.values()]
        if not steps or min(steps) < 0:
            return
        self._request += 1
        self.step = max(steps) + self._margin
        for block in self._blocks.values():
            block["stop_after_step"] = self.step
            block["stop_action"] = self._action
            block["stop_request"] = self._request
        self._proposed_ns, self.stage = now_ns, Stage.PROPOSED
        self.proposals += 1

    def _commit(self) -> None:
        for block in self._blocks.values():
            block["stop_committed"] = self._request
        self.stage = Stage.COMMITTED

    def _finish_commit(self) -> None:
        """What an agent before this one has committed holds."""
        for block in self._blocks.values():
            if block["stop_committed"] and block["stop_committed"] == block["stop_request"]:
                self._request, self.step = block["stop_request"], block["stop_after_step"]
                self._commit()
                return
