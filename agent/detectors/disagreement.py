"""The common shape of findings about ranks that launched different things."""

from __future__ import annotations

from collections.abc import Mapping

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.facts import JobFacts
from ranksight.hooks.records import Collective

NO_RESTART = "A bug of the training code: a restart without a change fails again."


def finding(
    kind: str, ranks: tuple[int, ...], call: Collective, onset_ns: int, facts: JobFacts, message: str, evidence: Mapping[str, object]
) -> Finding:
    """A finding about `ranks` whose `call` is the wrong one, wrong since `onset_ns`."""
    hosts = {facts.ranks[rank].host for rank in ranks if rank in facts.ranks}
    return Finding(
        kind=kind,
        severity=Severity.CRITICAL,
        ranks=ranks,
        hosts=tuple(sorted(hosts - {""})),
        group=call.group.name,
        op=call.op,
        group_seq=call.group_seq,
        call_site=call.call_site,
        first_step=call.step if call.step >= 0 else None,
        detected_step=facts.step,
        detection_seconds=max(0.0, (facts.now_ns - onset_ns) / 1e9),
        message=message,
        advice=NO_RESTART,
        evidence=dict(evidence),
    )
