"""The pages in a real Chromium: numbers are the report's, policy is kept, keyboard, phone, dark and light, live updates."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from ranksight.agent.export import http
from ranksight.agent.page import pages, routes, view
from tests.support import reports
from tests.support.chromium import Browser, chromium

pytestmark = pytest.mark.system("chromium")

DRAWN = "document.body.dataset.drawn === 'true'"
VALUES = "Object.fromEntries([...document.querySelectorAll('section')].map(s => [s.id, [...s.querySelectorAll('data')].map(d => d.value)]))"
CHARTS = "[...document.querySelectorAll('[data-chart] .main-svg')].length"


class Agent:
    """The routes on a real port in a thread; `report` may be replaced at any time."""

    def __init__(self) -> None:
        self.report = reports.full()
        self.listener, _ = http.bind("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        api = Route("/api/report", lambda _: JSONResponse(self.report))
        self._server = http.server(Starlette(routes=[*routes.routes(lambda: self.report, dict), api]))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[self.listener])))
        self._thread.start()

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self.listener.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def agent() -> Iterator[Agent]:
    served = Agent()
    yield served
    served.end()


def expected(report: dict[str, Any]) -> dict[str, list[float]]:
    """Numbers of the sections whose whole content is known by heart."""
    rows = report["collectives"]["by_op"]
    return {
        "verdict": [report["run"]["world_size"], report["run"]["steps"], report["run"]["exit_code"], report["overhead"]["fraction"]],
        "tails": [
            value
            for row in rows
            for kind in ("duration", "wait", "transfer")
            for value in (row["count"], *row[f"{kind}_seconds"].values(), row["bytes"], row["busbw_bytes_per_second"])
        ],
        "waits": [value for row in report["collectives"]["blame_seconds"].values() for value in row.values()],
        "steps": [
            value
            for row in report["steps"]["per_rank"]
            for value in (row["steps"], *row["seconds"].values(), row["loss"], row["tokens"])
        ],
    }


def shown(browser: Browser) -> dict[str, list[float]]:
    return {name: [float(value) for value in values] for name, values in browser.evaluate(VALUES).items()}


def test_the_live_page_shows_the_report_and_keeps_its_policy(browser: Browser, agent: Agent) -> None:
    browser.complaints.clear()
    received = browser.bytes_received
    browser.open(agent.address)
    browser.await_true(DRAWN)
    report = json.loads(json.dumps(agent.report))
    found = shown(browser)
    assert {name: found[name] for name in expected(report)} == expected(report)
    assert browser.evaluate("document.getElementById('headline').textContent") == report["verdict"]["headline"]
    assert browser.evaluate("[...document.querySelectorAll('.message')].map(m => m.textContent)") == [
        finding["message"] for finding in report["findings"]
    ]
    assert browser.evaluate(CHARTS) >= len(pages.state(report)["figures"])
    assert browser.complaints == []
    assert browser.bytes_received - received < 2_000_000


def test_the_page_follows_the_report_and_leaves_open_what_is_open(browser: Browser, agent: Agent) -> None:
    browser.open(agent.address)
    browser.await_true(DRAWN)
    browser.evaluate("document.getElementById('blame-table').open = true")
    agent.report = reports.full(ranks=3, steps=41)
    browser.await_true("document.querySelector('#verdict data').value === '3'")
    assert shown(browser)["waits"] == expected(agent.report)["waits"]
    assert browser.evaluate("document.getElementById('blame-table').open")
    assert browser.evaluate("document.getElementById('chart-blame').data[0].x.length") == 3
    agent.end()
    browser.await_true("document.getElementById('fresh').textContent.startsWith('not up to date')")


def test_the_keyboard_reaches_and_works_everything(browser: Browser, agent: Agent) -> None:
    browser.open(agent.address)
    browser.await_true(DRAWN)
    reached = []
    for _ in range(120):
        browser.press("Tab")
        active = browser.evaluate(
            "[document.activeElement.tagName, document.activeElement.id || document.activeElement.getAttribute('href') || '']"
        )
        if active[0] == "BODY":
            break
        reached.append(active)
        if active == ["BUTTON", "pause"]:
            browser.press("Enter")
    assert reached[0] == ["A", "#verdict"]
    assert {f"#{name}" for name in view.SECTIONS} <= {target for tag, target in reached if tag == "A"}
    assert browser.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    tags = [tag for tag, _ in reached]
    assert tags.count("SUMMARY") == browser.evaluate("document.querySelectorAll('summary').length")


def test_colours_follow_the_reader(browser: Browser, agent: Agent) -> None:
    seen = {}
    for dark in (False, True):
        browser.look(dark=dark)
        browser.open(agent.address)
        browser.await_true(DRAWN)
        seen[dark] = browser.evaluate(
            "[getComputedStyle(document.body).backgroundColor, document.getElementById('chart-steps').layout.font.color]"
        )
    assert seen[False] == ["rgb(255, 255, 255)", "#1b1f24"]
    assert seen[True] == ["rgb(15, 20, 25)", "#e6edf3"]
    browser.look()


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, agent: Agent) -> None:
    browser.look(width=390, height=844)
    browser.open(agent.address)
    browser.await_true(DRAWN)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    browser.look()


def test_report_html_is_whole_without_a_network(browser: Browser, tmp_path: Path) -> None:
    browser.complaints.clear()
    report = reports.full()
    path = pages.write(tmp_path, report)
    browser.open(path.as_uri())
    browser.await_true(DRAWN)
    found = shown(browser)
    assert {name: found[name] for name in expected(report)} == expected(report)
    assert browser.evaluate(CHARTS) >= len(pages.state(report)["figures"])
    assert browser.evaluate("performance.getEntriesByType('resource').filter(e => e.name.startsWith('http')).length") == 0
    assert browser.complaints == []
