"""One stop, from the decision to the last process gone; each tick does what is due, and the order on disk says how far.

    Decision -> begin -> LEAVING   the ranks agree on a step (`agreement`), save, and leave
                   or -> ENDING    they can't, or did not in time: evidence, then `ranksight run` ends the launcher;
                                   an agent without one ends the ranks itself
                      -> LEFT | ENDED | COMPLETED

Latched: nothing takes a stop back, and only a harsher decision changes it. An agent that was killed finds the order of
the one before it (`resume`) and goes on from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ranksight.agent.errors import RunDirError
from ranksight.agent.policy import handover, processes
from ranksight.agent.policy.agreement import SETTLE_NS, Agreement, Stage
from ranksight.agent.policy.audit import Log
from ranksight.agent.policy.conditions import Action, StopConditions
from ranksight.agent.policy.control import ControlBlock
from ranksight.agent.policy.engine import Decision
from ranksight.agent.policy.evidence import Evidence, Suspect
from ranksight.agent.policy.handover import Order, State
from ranksight.hooks.wire import StopAction

log = logging.getLogger(__name__)

EVIDENCE = "evidence"
SPARE_NS = 1_000_000_000  # for the agent to say that the evidence is there, before the processes are ended without it
LOOKS = 4  # at a proposal within one poll, each a few milliseconds after the one before
_ACTIONS = {str(Action.CHECKPOINT_AND_STOP): StopAction.CHECKPOINT_AND_STOP, str(Action.STOP): StopAction.STOP}


@dataclass(frozen=True, slots=True)
class Job:
    """What a stop can do things to. `owned`: a `ranksight run` carries out the end. `run_dir` None: nothing is written."""

    run_id: str
    run_dir: Path | None
    owned: bool
    policy: StopConditions


class Stopping:
    """A stop under way. Times are CLOCK_MONOTONIC nanoseconds."""

    def __init__(self, job: Job, order: Order, audit: Log) -> None:
        self.order = order
        self._job, self._audit = job, audit
        self._agreement: Agreement | None = None
        self._asked: frozenset[int] = frozenset()  # process ids of the ranks that agree
        self._unsaved = False
        self._evidence: Evidence | None = None
        self._ending: processes.Ending | None = None

    @classmethod
    def begin(cls, job: Job, decision: Decision, audit: Log, now_ns: int, cannot_agree: str | None) -> Stopping:
        """Put the order down. `cannot_agree` says why the ranks can't leave by themselves, None when they can."""
        order = Order(
            state=State.LEAVING, action=str(decision.action), reason=decision.reason, decided_ns=now_ns,
            end_by_ns=now_ns + round(job.policy.leave_seconds * 1e9), grace_seconds=job.policy.grace_seconds,
            exit_code=decision.exit_code, decision=to_json(decision),
        )  # fmt: skip
        stopping = cls(job, order, audit)
        if decision.action is Action.KILL:
            cannot_agree = "the condition asks to kill"
        if cannot_agree is None:
            stopping._save("the ranks are asked to leave after one step")
        else:
            stopping.end(now_ns, cannot_agree)
        return stopping

    def end(self, now_ns: int, why: str) -> None:
        """Do not wait for the ranks any more."""
        if self.order.state is State.LEAVING:
            end_by = now_ns + round(self._job.policy.evidence_seconds * 1e9) + SPARE_NS
            self.order = replace(self.order, state=State.ENDING, end_by_ns=min(end_by, self.order.end_by_ns + SPARE_NS))
            self._save(f"the processes are ended: {why}")

    def tick(self, ranks: Sequence[Suspect], now_ns: int, step_seconds: float) -> None:
        """Do what is due. `ranks` are the processes of all ranks, the suspects first."""
        if self._unsaved:
            self._hand_over()
        gone = bool(ranks) and all(rank.state is None for rank in ranks)
        if self.order.state is State.LEAVING:
            if self._asked and self._asked != {rank.pid for rank in ranks}:
                self.end(now_ns, "ranks were started again, and know nothing of the stop")
            else:
                self._leave(ranks, now_ns, step_seconds)
            if gone:
                self.finish(ranks, None)
            elif now_ns >= self.order.end_by_ns:
                self.end(now_ns, f"they did not leave within {self._job.policy.leave_seconds:g} s")
        if self.order.state is State.ENDING:
            self._end(ranks, now_ns)
            if gone:
                self.finish(ranks, None)

    def finish(self, ranks: Sequence[Suspect], launcher_code: int | None) -> None:
        """Nothing of the job runs any more: say how it ended."""
        if self.order.state.over:
            return
        self._read_answers()
        state = State.ENDED
        if self.order.state is State.LEAVING:
            everyone = len(self.order.left) == len(ranks) > 0
            if everyone:
                state = State.LEFT
            elif launcher_code is None:
                return  # the launcher's exit code will tell
            elif launcher_code == 0 and not self.order.left:
                state = State.COMPLETED
        self.order = replace(self.order, state=state)
        self._save(f"over: {state}")

    def withdraw(self) -> None:
        """This agent ends: ranks shall not wait for an answer that nobody will give."""
        if self._agreement is not None:
            self._agreement.withdraw()

    def section(self) -> dict[str, Any]:
        """The `stop` of report.json."""
        order = self.order
        return {
            "state": str(order.state), "decision": order.decision, "step": order.step, "action": order.action,
            "reason": order.reason, "finding": order.decision.get("finding"), "acknowledged": list(order.acknowledged),
            "left": order.left, "exit_code": order.exit_code, "evidence_dir": order.evidence_dir,
        }  # fmt: skip

    def _leave(self, ranks: Sequence[Suspect], now_ns: int, step_seconds: float) -> None:
        if self._agreement is None:
            try:
                blocks = {rank.rank: ControlBlock(rank.ring) for rank in ranks}
            except OSError as error:
                self.end(now_ns, f"a control block can't be written ({error})")
                return
            self._asked = frozenset(rank.pid for rank in ranks)
            action = _ACTIONS.get(self.order.action, StopAction.STOP)
            self._agreement = Agreement(blocks, action, self._job.policy.margin_steps, step_seconds)
        stage = self._agreement.tick(now_ns)
        for look in range(1, LOOKS + 1):  # commit now rather than at the next poll: ranks may be near the step
            if stage is Stage.PROPOSED:
                time.sleep(SETTLE_NS / 1e9)
                stage = self._agreement.tick(now_ns + look * SETTLE_NS)
        if stage is Stage.COMMITTED and self.order.step is None:
            self.order = replace(self.order, step=self._agreement.step)
            self._save(f"all ranks leave after step {self._agreement.step}")
        self._read_answers()

    def _read_answers(self) -> None:
        if self._agreement is not None:
            left = {str(rank): step for rank, step in self._agreement.left.items()}
            self.order = replace(self.order, acknowledged=self._agreement.acknowledged, left=left)

    def _end(self, ranks: Sequence[Suspect], now_ns: int) -> None:
        policy = self._job.policy
        if self._evidence is None and self._job.run_dir is not None and policy.evidence_seconds:
            self._evidence = Evidence(self._job.run_dir / EVIDENCE, ranks, policy.evidence_seconds)
            self._evidence.start()
            self.order = replace(self.order, evidence_dir=EVIDENCE)
            self._save("evidence is taken")
        if self._evidence is None or self._evidence.done:
            if now_ns < self.order.end_by_ns:
                self.order = replace(self.order, end_by_ns=now_ns)
                self._save("evidence is there; SIGTERM now, SIGKILL after the grace")
            if not self._job.owned:
                self._end_ranks(ranks, now_ns)

    def _end_ranks(self, ranks: Sequence[Suspect], now_ns: int) -> None:
        """Without a `ranksight run` there is nobody else to do it."""
        pids = [rank.pid for rank in ranks if rank.state is not None]
        if self._ending is None:
            self._ending = processes.Ending(
                lambda: processes.tree(pids) | processes.of_run(self._job.run_id), pids, self.order.grace_seconds, now_ns
            )
        self._ending.tick(now_ns)

    def _save(self, what: str) -> None:
        self._audit.append({"event": "stop", "what": what, "order": asdict(self.order)})
        self._hand_over()

    def _hand_over(self) -> None:
        """Put the order on disk; when that can't be done now, the next tick tries again."""
        if self._job.run_dir is None:
            return
        try:
            handover.write(self._job.run_dir, self.order)
            self._unsaved = False
        except RunDirError:
            if not self._unsaved:
                log.exception("the order to stop can't be written; trying on")
            self._unsaved = True


def to_json(decision: Decision) -> dict[str, Any]:
    """A decision as it stands in the audit and in the report."""
    return {
        "condition": decision.condition, "action": str(decision.action), "reason": decision.reason,
        "ranks": list(decision.ranks), "exit_code": decision.exit_code,
        "finding": decision.finding and decision.finding.to_json(),
    }  # fmt: skip
