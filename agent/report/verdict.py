"""From findings to one verdict: what is wrong first, in one sentence.

findings -> ordered -> Verdict(healthy, headline, primary)

A run is healthy when nothing above a remark was found and what was seen is complete. The order is by how much a finding
explains: a rank that died explains a hang, a hang explains a slow step; within a category the more severe and the
earlier come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ranksight.agent.findings import CATEGORIES, Finding, Severity

_ORDER = {category: number for number, category in enumerate(CATEGORIES)}
_LAST = len(_ORDER)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`primary` is the index of the root cause in the ordered findings, None when the run is healthy."""

    healthy: bool
    headline: str
    primary: int | None

    def to_json(self) -> dict[str, object]:
        """The `verdict` of report.json."""
        return {"healthy": self.healthy, "headline": self.headline, "primary": self.primary}


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by importance; remarks (severity info) last."""

    def importance(finding: Finding) -> tuple[int, int, int, int]:
        step = finding.first_step if finding.first_step is not None else 1 << 62
        observer = finding.category == "observer"
        return (
            int(finding.severity is Severity.INFO),
            -finding.severity.order + 3 * observer,  # what was not seen explains nothing that was
            _ORDER.get(finding.category, _LAST),
            step,
        )

    return tuple(sorted(findings, key=importance))


def judge(findings: tuple[Finding, ...], ranks: int, steps: int | None) -> Verdict:
    """The verdict over ordered findings of a job of `ranks` watched ranks that finished `steps` steps."""
    if findings and findings[0].severity is not Severity.INFO:
        return Verdict(False, findings[0].message, 0)
    seen = f"{ranks} rank{'s' * (ranks != 1)}" + (f" over {steps} steps" if steps else "")
    complete = not any(finding.category == "observer" for finding in findings)
    records = "no record is missing" if complete else "hardly a record is missing (see completeness)"
    return Verdict(True, f"Nothing wrong was found on {seen}, and {records}.", None)
