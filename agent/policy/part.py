"""The part of the agent that acts on findings: conditions, one stop at most, audit.jsonl and findings.jsonl.

    Policy.roll: findings, metrics, phases -> Engine -> decisions -> audit.jsonl -> (enforced) Stopping -> stop.json
                 findings -> findings.jsonl

Without conditions there is nothing to decide, and findings are still written down. What is only observed, or decided
after the job was over, stands in the audit and in `stop` of the report as "observed".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ranksight.agent import files
from ranksight.agent.errors import RunDirError
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.parts import Part, Surroundings
from ranksight.agent.policy import handover
from ranksight.agent.policy.audit import AUDIT_FILE, FINDINGS_FILE, FindingsLog, Log
from ranksight.agent.policy.conditions import Action
from ranksight.agent.policy.engine import RETRY, Decision, Engine, Look, Series, describe
from ranksight.agent.policy.evidence import Suspect
from ranksight.agent.policy.handover import State
from ranksight.agent.policy.stopping import Job, Stopping, to_json
from ranksight.hooks.wire import Phase

if TYPE_CHECKING:
    from ranksight.agent.export.exposition import Block
    from ranksight.agent.observer import Observer

log = logging.getLogger(__name__)

METRICS_NS = 5_000_000_000  # between two looks at metrics: they cost as much as a scrape
STANDS_STILL = frozenset({"process", "hang"})  # categories of findings after which no step is agreed on any more
STATES = {"observed": 0, State.LEAVING: 1, State.ENDING: 2, State.LEFT: 3, State.ENDED: 4, State.COMPLETED: 5}
_PHASES: dict[int, str] = {phase: phase.name.lower() for phase in Phase}


class Policy(Part):
    """Decides, and sees a stop through."""

    def __init__(self, surroundings: Surroundings) -> None:
        policy, run_dir = surroundings.stop_conditions, surroundings.run_dir
        self._job = Job(surroundings.run_id, run_dir, surroundings.owned, policy)
        self._acts = surroundings.enforce and not policy.dry_run
        self._engine = Engine(policy, surroundings.restarts)
        self._audit = Log(run_dir and run_dir / AUDIT_FILE)
        self.found = FindingsLog(run_dir and run_dir / FINDINGS_FILE)
        self.stopping: Stopping | None = None
        self._observed: Decision | None = None
        self._known_before: set[tuple[str, tuple[int, ...]]] = set()  # findings that there were when the stop began
        self._looked_ns = 0
        self._asked = False  # a scheduler wants the job to leave
        if policy.conditions:
            self._audit.append({"event": "policy", "acts": self._acts, "conditions": policy.model_dump(mode="json")})
        order = handover.read(run_dir) if run_dir else None
        if order is not None and not order.state.over:
            self.stopping = Stopping(self._job, order, self._audit)
            self._audit.append({"event": "stop", "what": "the agent was started again and goes on with the stop"})

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Look at the findings, decide, and do what is due for a stop."""
        findings = observer.faults()
        self.found.look(findings, _step(observer), now_ns)
        if self._engine.policy.conditions:
            for decision in self._engine.look(self._look(observer, findings, now_ns)):
                self.decide(decision, observer, now_ns)
        if self._asked and any(source.state is not None for source in observer.current()):
            self._asked = False
            reason = "SIGUSR1: the job is asked to leave."
            decision = Decision("signal", Action.CHECKPOINT_AND_STOP, reason, (), RETRY)
            self.decide(decision, observer, now_ns, asked=True)
        if self.stopping is not None:
            if self.stopping.order.state is State.LEAVING:
                still = [f for f in findings if _stands_still(f) and (f.kind, f.ranks) not in self._known_before]
                if still:
                    self.stopping.end(now_ns, f"a rank can't leave: {still[0].message}")
            self.stopping.tick(self._suspects(observer), now_ns, _step_seconds(observer))

    def asked_to_leave(self) -> None:
        """A scheduler wants the job to leave, as soon as there are ranks: nothing that anybody would have to enforce."""
        self._asked = True

    def decide(self, decision: Decision, observer: Observer, now_ns: int, *, asked: bool = False) -> None:
        """Write a decision down and, when it is to be enforced or was asked for, begin the stop or make it harsher."""
        alive = any(source.state is not None for source in observer.current())
        acts = (self._acts or asked) and decision.action is not Action.OBSERVE and alive
        self._audit.append({
            "event": "decision", "acts": acts, "job_runs": alive, "step": _step(observer), "monotonic_ns": now_ns,
            "decision": to_json(decision), "ranks": [self._inputs(observer, rank) for rank in decision.ranks],
        })  # fmt: skip
        log.warning("%s%s", describe(decision), "" if acts else " Observed only.")
        if not acts:
            self._observed = decision
        elif self.stopping is None:
            self._known_before = {(finding.kind, finding.ranks) for finding in observer.faults()}
            observer.stopping()
            why = _cannot_agree(decision, observer)
            self.stopping = Stopping.begin(self._job, decision, self._audit, now_ns, why)
        elif decision.action is Action.KILL:
            self.stopping.end(now_ns, f"condition {decision.condition!r} asks to kill")

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped, or is being stopped."""
        return self.stopping is not None and self.stopping.order.state is not State.COMPLETED

    def exit_code(self, launcher_code: int | None) -> int | None:
        """How the run should exit."""
        if self.stopping is None or self.stopping.order.state is State.COMPLETED:
            return launcher_code
        return self.stopping.order.exit_code

    def sections(self, observer: Observer) -> dict[str, Any]:
        """The `stop` of report.json; None when no condition has fired."""
        if self.stopping is not None:
            return {"stop": self.stopping.section()}
        if self._observed is None:
            return {"stop": None}
        decision = to_json(self._observed)
        return {
            "stop": {
                "state": "observed", "decision": decision, "step": None, "action": str(self._observed.action),
                "reason": self._observed.reason, "finding": decision["finding"], "acknowledged": [], "left": {},
                "exit_code": None, "evidence_dir": None,
            }
        }  # fmt: skip

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """How far a stop is, and what was found."""
        from ranksight.agent import catalog
        from ranksight.agent.export.exposition import Block

        state = self.stopping.order.state if self.stopping is not None else "observed"
        yield Block(catalog.BY_NAME["ranksight_stop_state"], [()], [STATES[state]])
        counts = dict(sorted(self.found.counts.items()))
        yield Block(catalog.BY_NAME["ranksight_findings_total"], list(counts), list(counts.values()))

    def close(self, observer: Observer, now_ns: int) -> None:
        """The job is over, or this agent is."""
        self.found.end(_step(observer))
        if self.stopping is None:
            return
        if any(source.state is not None for source in observer.current()):
            self.stopping.withdraw()
        else:
            self.stopping.finish(self._suspects(observer), self._launcher_code())

    def _look(self, observer: Observer, findings: Sequence[Finding], now_ns: int) -> Look:
        phases = {source.rank: _PHASES.get(source.reader["phase"], "other") for source in observer.current()}
        series: Mapping[str, Sequence[Series]] = {}
        if self._engine.metrics and now_ns - self._looked_ns >= METRICS_NS:
            self._looked_ns = now_ns
            series = _series(observer, self._engine.metrics)
        return Look(now_ns, findings, series, phases.get, tuple(phases))

    def _suspects(self, observer: Observer) -> list[Suspect]:
        wanted = set(self.stopping.order.decision.get("ranks", ())) if self.stopping is not None else set()
        found = [
            Suspect(source.rank, source.reader["pid"], source.reader.path, source.state) for source in observer.current()
        ]
        return sorted(found, key=lambda suspect: (suspect.rank not in wanted, suspect.rank))

    def _inputs(self, observer: Observer, rank: int) -> dict[str, Any]:
        """What was known of a rank when it was decided about."""
        for source in observer.current():
            if source.rank == rank:
                reader = source.reader
                return {
                    "rank": rank, "pid": reader["pid"], "state": source.state, "step": reader["step"],
                    "phase": _PHASES.get(reader["phase"], "other"), "life": reader["life"],
                }  # fmt: skip
        return {"rank": rank}

    def _launcher_code(self) -> int | None:
        if self._job.run_dir is None:
            return None
        try:
            code: int = files.read_json(self._job.run_dir / files.EXIT_FILE)["exit_code"]
        except RunDirError:
            return None
        return code


def _cannot_agree(decision: Decision, observer: Observer) -> str | None:
    """Why the ranks can't leave after one step, by what is known now."""
    if decision.finding is not None and _stands_still(decision.finding):
        return f"ranks that {decision.finding.kind} is about make no more steps"
    current = observer.current()
    stuck = [source.rank for source in current if source.state in {None, "T", "t"}]
    if stuck:
        return f"rank {stuck[0]} does not run"
    world = max(source.reader["world_size"] for source in current)
    if world > len(current):
        return f"{world - len(current)} of {world} ranks are on other hosts"
    return None


def _stands_still(finding: Finding) -> bool:
    return finding.category in STANDS_STILL and finding.severity is Severity.CRITICAL


def _step(observer: Observer) -> int | None:
    steps = [source.reader["step"] for source in observer.current()]
    return max(steps, default=-1) if max(steps, default=-1) >= 0 else None


def _step_seconds(observer: Observer) -> float:
    """Mean seconds of a step over the run, of the fastest rank; 0 when no step has ended."""
    states = [state for state in observer.steps.ranks.values() if state.steps]
    return min((state.step_seconds / state.steps for state in states), default=0.0)


def _series(observer: Observer, wanted: frozenset[str]) -> dict[str, list[Series]]:
    from ranksight.agent.export import exposition

    return {
        block.spec.name: [(dict(zip(block.spec.labels, labels, strict=True)), value) for labels, value in block.series()]
        for block in exposition.blocks(observer)
        if block.spec.name in wanted
    }
