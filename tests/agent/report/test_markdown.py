"""The report as Markdown: the same numbers, and text that can't break its tables."""

from __future__ import annotations

from ranksight.agent.report import markdown
from ranksight.agent.report.build import missing
from tests.support import reports


def test_the_verdict_leads_and_numbers_are_the_reports() -> None:
    lines = markdown.render(reports.full()).splitlines()
    assert lines[:3] == ["# ranksight: not healthy", "", "Rank 1 is late: 0.2 s a step &lt;script>alert(1)&lt;/script>."]
    assert "| dp | all_reduce | 100 | 11 ms | 33 ms | 44 ms | 55 ms | 21 ms | 3 ms | 1 MiB |" in lines
    assert "| 4 | 4 | 1000 | 1 |" in lines


def test_unknown_is_a_dash() -> None:
    rendered = markdown.render(missing("r", 9, "nobody | looked."))
    assert "| r | - | - | 9 | - |" in rendered
    assert "nobody \\| looked." in rendered
    assert "## Collectives" not in rendered
