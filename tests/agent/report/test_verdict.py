"""Which finding explains the others, and when a run is healthy."""

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.report.verdict import judge, ordered


def finding(kind: str, severity: Severity = Severity.WARNING, first_step: int | None = None) -> Finding:
    return Finding(kind=kind, severity=severity, message=f"{kind}.", advice="a", first_step=first_step)


def test_what_explains_more_comes_first() -> None:
    found = [
        finding("incomplete_data", Severity.WARNING),
        finding("straggler", Severity.WARNING),
        finding("memory_growth", Severity.INFO),
        finding("rank_not_joined", Severity.CRITICAL),
        finding("rank_dead", Severity.CRITICAL),
        finding("pause", Severity.WARNING, first_step=3),
    ]
    kinds = [one.kind for one in ordered(found)]
    assert kinds == ["rank_dead", "rank_not_joined", "pause", "straggler", "incomplete_data", "memory_growth"]


def test_remarks_leave_a_run_healthy() -> None:
    verdict = judge(ordered([finding("pause", Severity.INFO)]), 4, 160)
    assert (verdict.healthy, verdict.primary) == (True, None)
    assert verdict.headline == "Nothing wrong was found on 4 ranks over 160 steps, and no record is missing."


def test_missing_data_is_not_healthy() -> None:
    verdict = judge(ordered([finding("incomplete_data")]), 3, None)
    assert (verdict.healthy, verdict.primary, verdict.headline) == (False, 0, "incomplete_data.")
