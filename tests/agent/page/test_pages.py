"""What stands on the pages: the report's own numbers, in order, escaped, and never a zero for the unknown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects
import pytest

from ranksight.agent.page import figures, pages, view
from ranksight.agent.report.build import missing
from tests.support import reports

NO_NUMBERS = missing("run-8", 3, "nobody looked.")


class Numbers(HTMLParser):
    """Values of the data elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "data":
            self.values.append(str(dict(attrs)["value"]))


def sections(report: dict[str, Any]) -> dict[str, str]:
    return view.sections(report, {}, set(figures.figures(report)))


def numbers(html: str) -> list[float]:
    return [float(value) for value in Numbers(html).values]


def test_the_verdict_comes_first_and_every_section_has_its_place() -> None:
    assert next(iter(sections(reports.full()))) == "verdict"
    html = pages.live(pages.state(reports.full()))
    assert re.findall(r'<section id="(\w+)"', html) == list(view.SECTIONS)


def test_numbers_are_those_of_the_report() -> None:
    report = reports.full(ranks=3)
    made = sections(report)
    rows = report["collectives"]["by_op"]
    assert numbers(made["tails"]) == [
        value
        for row in rows
        for kind in ("duration", "wait", "transfer")
        for value in (row["count"], *row[f"{kind}_seconds"].values(), row["bytes"], row["busbw_bytes_per_second"])
    ]
    assert numbers(made["waits"]) == [value for row in report["collectives"]["blame_seconds"].values() for value in row.values()]
    assert numbers(made["costs"])[: 3 * 11] == [
        value for row in report["budget"]["per_rank"] for value in (row["steps"], *row["seconds"].values())
    ]
    assert numbers(made["completeness"])[:4] == [3, 3, 1000, 999]
    assert "1 ms" not in made["verdict"] and "0.5 %" in made["verdict"]


def test_what_was_not_measured_is_said_and_is_no_zero() -> None:
    made = sections(NO_NUMBERS)
    for name in ("steps", "costs", "waits", "pipeline", "experts", "tails", "numerics"):
        assert numbers(made[name]) == [], name
        assert view.NOT_MEASURED in made[name], name
    assert figures.figures(NO_NUMBERS) == {}
    partly = reports.full()
    partly["budget"] = partly["pipeline"] = partly["experts"] = partly["stop"] = None
    assert view.NOT_MEASURED in sections(partly)["costs"]
    partly["goodput"] = {"buckets": {"productive": 1.0}}
    assert "model FLOP utilisation</dt><dd><span class='unknown'>not measured" in sections(partly)["costs"]


def test_text_from_outside_stays_text() -> None:
    for html in (pages.live(pages.state(reports.full())), pages.whole(reports.full())):
        assert "<script>alert(1)" not in html
        assert "&lt;script&gt;alert(1)" in html
        assert "no &lt;compiler&gt;" in html


def test_every_figure_is_one_that_plotly_accepts() -> None:
    made = figures.figures(reports.full())
    assert set(made) == {"steps", "loss", "blame", "budget", "goodput", "bubble", "timeline", "experts"}
    for figure in made.values():
        plotly.graph_objects.Figure(figure)  # raises at anything that it does not know


def test_figures_leave_gaps_where_nothing_is_known() -> None:
    report = reports.full(ranks=2)
    report["collectives"]["blame_seconds"]["tp"].pop("0")
    made = figures.figures(report)
    assert made["blame"]["data"][0]["z"] == [[0.25, 1.25], [None, 1.25]]
    assert made["loss"]["data"][0]["y"][-1] is None
    assert "transfer" not in [part["name"] for part in made["bubble"]["data"]]  # its values are null on all ranks


def test_the_timeline_begins_at_the_first_action_and_keeps_ranks_from_the_top() -> None:
    made = figures.figures(reports.full(ranks=2))["timeline"]
    forward = made["data"][0]
    assert (forward["name"], forward["base"][:2], forward["x"][0]) == ("forward", [0.0, 1.0], 0.4)
    assert made["layout"]["yaxis"]["categoryarray"] == ["1", "0"]


def test_the_whole_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    html = pages.write(tmp_path, reports.full()).read_text()
    assert html == (tmp_path / "report.html").read_text()
    head = html[: html.index("<body")]
    assert not re.findall(r'(?:src|href)="(?!data:)', head)
    assert re.search(r"script-src &#39;sha256-\S+&#39; &#39;sha256-\S+&#39;;", head)
    assert 'src="http' not in html[: html.index('<script type="application/json"')]


@pytest.mark.parametrize("report", [reports.full(), NO_NUMBERS], ids=["full", "missing"])
def test_the_title_says_the_state(report: dict[str, Any]) -> None:
    assert pages.state(report)["title"] == f"NOT healthy: {report['run']['id']}"
