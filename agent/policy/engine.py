"""Which conditions fire now. Pure: what was seen and when goes in, decisions come out.

    Look (findings, series, phases at one time) -> Engine.look -> decisions, each once

A finding counts for a condition when its kind and severity fit, and persists from the first look that showed it. What
stands still (a hang, a death, numbers that are not finite) persists until it is resolved. What happens in steps
(slowness, imbalance, memory) persists as far as new steps have shown it: a straggler that got well stays in the report,
and does not grow older. A series counts while its value is beyond the threshold, without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ranksight.agent.findings import Finding
from ranksight.agent.policy.conditions import WRITTEN_IN_CODE, Action, Condition, Restart, StopConditions
from ranksight.agent.words import ranks_in_words

RETRY, FINAL = 75, 76  # exit codes: a restart is sensible; a restart without a change would fail again
IN_STEPS = frozenset({"slow", "imbalance", "resources"})  # categories of findings that new steps confirm

Series = tuple[Mapping[str, str], float]
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen at one time. `series` has the metrics that conditions name; `phase` is None for a rank not known."""

    now_ns: int
    findings: Sequence[Finding] = ()
    series: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    phase: Callable[[int], str | None] = lambda _: None
    ranks: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """A condition that fires: what its file wants done, about which ranks, why, and how the job should exit."""

    condition: str
    action: Action
    reason: str
    ranks: tuple[int, ...]
    exit_code: int
    finding: Finding | None = None


@dataclass(slots=True)
class _Known:
    """Since when something counts, and until when it was confirmed."""

    since_ns: int
    until_ns: int
    last_step: int | None = None


class Engine:
    """The conditions of one job. `restarts` is how often the job was restarted before; a resumed one begins cooled."""

    def __init__(self, policy: StopConditions, restarts: int = 0) -> None:
        self.policy, self._restarts = policy, restarts
        self._began_ns: int | None = None
        self._known: dict[tuple[str, Key], _Known] = {}
        self._fired: set[tuple[str, Key]] = set()
        self._quiet_until: dict[str, int] = {}

    @property
    def metrics(self) -> frozenset[str]:
        """Metrics that a look must bring."""
        return frozenset(condition.metric for condition in self.policy.conditions if condition.metric)

    def look(self, look: Look) -> tuple[Decision, ...]:
        """Conditions that fire with this look, the harshest first."""
        if self._began_ns is None:
            self._began_ns = look.now_ns
        decisions = []
        for condition in self.policy.conditions:
            decision = self._series(condition, look) if condition.metric else self._findings(condition, look)
            if decision is not None and look.now_ns >= self._quiet_until.get(condition.name, 0):
                self._quiet_until[condition.name] = look.now_ns + self._cool_down_ns
                decisions.append(decision)
        return tuple(sorted(decisions, key=lambda decision: -decision.action.order))

    @property
    def _cool_down_ns(self) -> int:
        return round(self.policy.cool_down_seconds * 1e9)

    def _warming_up(self, now_ns: int) -> bool:
        return self._restarts > 0 and now_ns - (self._began_ns or 0) < self._cool_down_ns

    def _findings(self, condition: Condition, look: Look) -> Decision | None:
        matching = [
            finding
            for finding in look.findings
            if finding.kind in condition.kinds and finding.severity.order >= condition.severity.order
        ]
        self._forget(condition, {_key(finding) for finding in matching})
        due = [finding for finding in matching if self._persists(condition, finding, look.now_ns)]
        due = [finding for finding in due if not _exempt(condition, finding.ranks or look.ranks, look)]
        new = [finding for finding in due if (condition.name, _key(finding)) not in self._fired]
        if len(due) < condition.count or not new or look.now_ns < self._quiet_until.get(condition.name, 0):
            return None
        self._fired |= {(condition.name, _key(finding)) for finding in due}
        first = new[0]
        more = f" (and {len(due) - 1} more)" if len(due) > 1 else ""
        ranks = sorted({rank for finding in due for rank in finding.ranks})
        final = any(finding.kind in WRITTEN_IN_CODE for finding in due)
        return self._decision(condition, first.message + more, tuple(ranks), final, first)

    def _persists(self, condition: Condition, finding: Finding, now_ns: int) -> bool:
        known = self._known.setdefault((condition.name, _key(finding)), _Known(now_ns, now_ns, finding.last_step))
        in_steps = finding.category in IN_STEPS
        if not in_steps or finding.last_step != known.last_step:
            known.until_ns, known.last_step = now_ns, finding.last_step
        if in_steps and self._warming_up(now_ns):
            return False
        return known.until_ns - known.since_ns >= condition.persist_seconds * 1e9

    def _series(self, condition: Condition, look: Look) -> Decision | None:
        assert condition.metric is not None and condition.threshold is not None
        if condition.metric not in look.series:
            return None  # not looked at this time; that says nothing about it
        beyond: dict[Key, Series] = {}
        for labels, value in look.series[condition.metric]:
            fits = all(labels.get(name) == wanted for name, wanted in condition.labels.items())
            if fits and (value > condition.threshold if condition.side == "above" else value < condition.threshold):
                beyond[tuple(sorted(labels.items()))] = (labels, value)
        self._forget(condition, set(beyond))
        due: list[Series] = []
        for key, (labels, value) in beyond.items():
            known = self._known.setdefault((condition.name, key), _Known(look.now_ns, look.now_ns))
            persists = look.now_ns - known.since_ns >= condition.persist_seconds * 1e9
            if persists and not _exempt(condition, _ranks(labels) or look.ranks, look):
                due.append((labels, value))
        if len(due) < condition.count or self._warming_up(look.now_ns):
            return None
        labels, value = due[0]
        where = ", ".join(f"{name}={text}" for name, text in labels.items())
        reason = f"{condition.metric}{{{where}}} is {value:g}, {condition.side} {condition.threshold:g}"
        more = f" (and {len(due) - 1} more series)" if len(due) > 1 else ""
        ranks = sorted({rank for labels, _ in due for rank in _ranks(labels)})
        return self._decision(condition, f"{reason}{more}.", tuple(ranks), False, None)

    def _forget(self, condition: Condition, seen: set[Key]) -> None:
        """What does not count any more begins anew when it comes back."""
        for name, key in [known for known in self._known if known[0] == condition.name]:
            if key not in seen:
                del self._known[name, key]

    def _decision(
        self, condition: Condition, reason: str, ranks: tuple[int, ...], written: bool, finding: Finding | None
    ) -> Decision:
        final = condition.restart is Restart.NO or (condition.restart is Restart.AUTO and written)
        if not final and condition.action is not Action.OBSERVE and self._restarts >= self.policy.restart_budget:
            final = True
            reason += f" The job was restarted {self._restarts} times, which is all that restart_budget allows."
        return Decision(condition.name, condition.action, reason, ranks, FINAL if final else RETRY, finding)


def describe(decision: Decision) -> str:
    """A decision in one line, for people."""
    who = f" about {ranks_in_words(decision.ranks).lower()}" if decision.ranks else ""
    return f"condition {decision.condition!r}{who}: {decision.action}. {decision.reason}"


def _key(finding: Finding) -> Key:
    """What makes a finding the same one in a later look."""
    return (finding.kind, finding.ranks, finding.stage, finding.layer, finding.group)


def _ranks(labels: Mapping[str, str]) -> tuple[int, ...]:
    text = labels.get("rank", "")
    return (int(text),) if text.isdigit() else ()


def _exempt(condition: Condition, ranks: Sequence[int], look: Look) -> bool:
    return bool(condition.exempt_phases) and any(look.phase(rank) in condition.exempt_phases for rank in ranks)
