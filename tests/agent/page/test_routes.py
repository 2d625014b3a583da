"""The live page over HTTP: strict, small, unchanged when nothing has changed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from ranksight.agent.page import pages, routes
from tests.support import reports

MEGABYTE = 1_000_000


class Served:
    """The routes over a report and a clock that tests change."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report, self.now, self.asked = report, 10.0, 0
        self.app = Starlette(routes=routes.routes(self._report, dict, lambda: self.now))

    def _report(self) -> dict[str, Any]:
        self.asked += 1
        return self.report

    def get(self, path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://agent") as client:
                return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

        return asyncio.run(ask())


@pytest.fixture
def served() -> Served:
    return Served(reports.full())


def test_no_script_from_elsewhere_and_none_inside(served: Served) -> None:
    answer = served.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe-eval" not in policy
    assert answer.text.count("<script") == answer.text.count("<script src=") == 2
    assert " onclick" not in answer.text


def test_the_state_is_sent_once_until_it_changes(served: Served) -> None:
    first = served.get("/api/page")
    assert first.json()["sections"]["verdict"]
    again = served.get("/api/page", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content, served.asked) == (304, b"", 1)
    served.report = reports.full(steps=41)
    served.now += routes.FRESH_SECONDS
    changed = served.get("/api/page", if_none_match=first.headers["etag"])
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


def test_plotly_comes_from_its_wheel_whole_and_compressed(served: Served) -> None:
    answer = served.get(pages.plotly_path(), accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.text == pages.plotly() == served.get(pages.plotly_path(), accept_encoding="identity").text


@pytest.mark.parametrize("name", ["secret.py", "..%2Fpages.py", "page.html"])
def test_only_known_files_are_served(served: Served, name: str) -> None:
    assert served.get(f"/static/{name}").status_code == 404


def test_a_whole_load_with_many_ranks_and_steps_stays_small() -> None:
    served = Served(reports.full(ranks=64, steps=512))
    taken = 0
    for path in ("/", "/api/page", "/static/page.js", "/static/page.css", pages.plotly_path()):
        answer = served.get(path, accept_encoding="gzip")
        assert answer.headers["content-encoding"] == "gzip"
        taken += int(answer.headers["content-length"])
    assert 1 * MEGABYTE < taken < 2 * MEGABYTE
