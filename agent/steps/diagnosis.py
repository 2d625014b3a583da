"""From the table of steps to latched findings about slow ranks, imbalance, numerics and memory.

    StepTable.window -> detectors -> StepDiagnosis.update -> findings so far

A fault is one finding, however often its detector fires: the first detection is kept (when, at which step), and the
last step, cost and evidence follow the latest. Detectors run when a new step is complete, at most once a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ranksight.agent.detectors import imbalance, numerics, origins, slow
from ranksight.agent.detectors.host import cpu_oversubscribed
from ranksight.agent.detectors.regression import regression
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.host import HostWatch
from ranksight.agent.steps.table import StepTable
from ranksight.agent.steps.window import StepWindow

WINDOW_STEPS = 200
HISTORY_STEPS = 400  # for trends
INTERVAL_NS = 1_000_000_000
TRENDS_NS = 5_000_000_000  # what takes a hundred steps to show is looked for less often

# The fault on the left explains the one on the right: what it causes is not said a second time.
EXPLAINS = {
    "cpu_oversubscribed": {"straggler", "pause", "workload_imbalance", "slow_network", "slow_link", "regression"},
    "slow_link": {"slow_network", "regression"},
    "slow_network": {"regression"},
    "nonfinite": {"loss_spike", "grad_spike", "divergence"},
    "divergence": {"loss_spike", "grad_spike"},
    "router_collapse": {"expert_imbalance", "dead_expert", "straggler", "workload_imbalance"},
    "expert_imbalance": {"straggler", "workload_imbalance"},
    "stage_imbalance": {"straggler", "workload_imbalance"},
    "straggler": {"workload_imbalance"},
}


DOUBTFUL = frozenset(
    {"straggler", "workload_imbalance", "stage_imbalance", "expert_imbalance", "pause", "slow_network", "regression"}
)
ONCE = frozenset({"nonfinite"})  # of a job: what is said of it grows
STEADY_SHARE, STEADY_STEPS = 0.85, 40  # a straggler is the last one in so many steps, over so many


def detect(
    window: StepWindow, history: StepWindow, stages: Mapping[int, int], trends: bool = True
) -> tuple[Finding, ...]:
    """What these steps show, without what another finding among them explains; `trends`: also over many steps."""
    found = (
        *numerics.nonfinite(history),
        *numerics.spikes(history),
        *(numerics.divergence(history) if trends else ()),
        *imbalance.expert_imbalance(window),
        *imbalance.stage_imbalance(window, dict(stages)),
        *slow.stragglers(window),
        *slow.pauses(window),
        *slow.workload_imbalance(window),
        *slow.slow_network(window),
        *regression(window),
        *(numerics.memory_growth(history) if trends else ()),
    )
    return unexplained(found)


def unexplained(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings without those that another one among them explains."""
    return tuple(finding for finding in found if not _explained(finding, found))


def _doubted(finding: Finding, host: HostWatch) -> Finding:
    """A crowded host delays ranks at random, and the same one for a while: there only what is nearly always so counts."""
    if not host.crowded or finding.cause in {"gc", "input"}:
        return finding
    seen = finding.evidence
    steady = finding.kind == "straggler" and seen["share_of_steps_last"] >= STEADY_SHARE and seen["steps"] >= STEADY_STEPS
    if finding.kind not in DOUBTFUL or steady:
        return finding
    note = " The host has more runnable threads than cores, which by itself makes ranks late and busy."
    return replace(finding, severity=Severity.INFO, message=finding.message + note)


def _explained(finding: Finding, found: tuple[Finding, ...]) -> bool:
    # A collapse is seen in the tokens of a layer and in the rows of a rank; the layer says more.
    if finding.kind == "router_collapse" and finding.layer is None and any(_is_collapse_of_layer(f) for f in found):
        return True
    return any(finding.kind in EXPLAINS.get(other.kind, ()) for other in found)


def _is_collapse_of_layer(finding: Finding) -> bool:
    return finding.kind == "router_collapse" and finding.layer is not None


class StepDiagnosis:
    """Findings from steps, latched over the polls of one job."""

    def __init__(self) -> None:
        self._latched: dict[tuple[str, tuple[int, ...], int | None], Finding] = {}
        self._last_step = -1
        self._last_ns = self._trends_ns = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, oldest first, without those that a later one explained."""
        return unexplained(tuple(self._latched.values()))

    def update(
        self,
        table: StepTable,
        stages: Mapping[int, int],
        host: HostWatch,
        pools: Sequence[int],
        now_ns: int,
        final: bool = False,
    ) -> tuple[Finding, ...]:
        """Look at the steps completed since the last call, and at the host; returns the findings that are new."""
        if not final and now_ns - self._last_ns < INTERVAL_NS:
            return ()
        history = table.window(HISTORY_STEPS)
        if history is None:
            return ()
        last = int(history.steps[-1])
        if last == self._last_step:
            return ()
        self._last_step, self._last_ns = last, now_ns
        window = table.window(WINDOW_STEPS)
        assert window is not None  # a longer one exists
        new = []
        trends = final or now_ns - self._trends_ns >= TRENDS_NS
        if trends:
            self._trends_ns = now_ns
        crowded = cpu_oversubscribed(host.samples, host.cores, window.hosts[0], pools, last)
        for finding in (*crowded, *(_doubted(found, host) for found in detect(window, history, stages, trends))):
            if finding.kind == "nonfinite":
                finding = origins.named(finding, table.births, len(history.ranks))  # noqa: PLW2901 - the same, completed
            known_as = self._known_as(finding)
            if known_as is None:
                seconds = table.seconds_since(finding.first_step, now_ns)
                latched = replace(finding, detection_seconds=seconds)
                self._latched[latched.kind, latched.ranks, latched.stage] = latched
                new.append(latched)
            else:
                self._latched[known_as] = _follow(self._latched[known_as], finding)
        return tuple(new)

    def _known_as(self, finding: Finding) -> tuple[str, tuple[int, ...], int | None] | None:
        """The latched finding that this one repeats: the same kind on the same ranks, or explained by another kind."""
        for key, old in self._latched.items():
            same = old.ranks == finding.ranks and old.stage == finding.stage
            if old.kind == finding.kind and (same or old.kind in ONCE):
                return key
            if finding.kind in EXPLAINS.get(old.kind, ()):
                return key
        return None


def _follow(old: Finding, new: Finding) -> Finding:
    if old.kind != new.kind:
        return old
    if old.kind in ONCE and (new.first_step or 0) > (old.first_step or 0):  # its first step has left the window
        return replace(old, last_step=new.last_step)
    return replace(
        old,
        severity=max(old.severity, new.severity, key=lambda severity: severity.order),
        cause=new.cause if new.cause not in {None, "unknown"} else old.cause,
        first_step=min(s for s in (old.first_step, new.first_step) if s is not None)
        if old.first_step is not None
        else new.first_step,
        last_step=new.last_step,
        ranks=new.ranks,
        hosts=new.hosts,
        stage=new.stage,
        layer=new.layer,
        cost_seconds=max(old.cost_seconds or 0.0, new.cost_seconds or 0.0),
        message=new.message,
        evidence=new.evidence,
    )
