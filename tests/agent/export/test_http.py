"""The agent's HTTP routes over a real observer, and how ports are chosen."""

import asyncio
import gzip
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ranksight.agent.errors import RanksightError
from ranksight.agent.export import http
from ranksight.agent.observer import Observer
from tests.support.ring_writer import RingWriter

Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """One request to the routes, without a network; bodies are left as they came when `raw` is given."""
    RingWriter(tmp_path / "run-7", 0, 1)
    observer = Observer(tmp_path / "run-7")
    observer.poll()
    routes = http.app(observer, lambda: {"schema": 1})

    async def request(method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=routes), base_url="http://agent") as client:
            return await client.request(method, path, headers=headers)

    return lambda path, method="GET", **headers: asyncio.run(
        request(method, path, {name.replace("_", "-"): value for name, value in headers.items()})
    )


def test_metrics_are_text_unless_openmetrics_is_asked_for(ask: Ask) -> None:
    plain = ask("/metrics", accept="text/plain")
    assert plain.headers["content-type"].startswith("text/plain")
    assert list(parse_text(plain.text))
    modern = ask("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert list(parse_openmetrics(modern.text))  # type: ignore[no-untyped-call]


def test_large_pages_are_compressed_for_those_who_can(ask: Ask) -> None:
    squeezed = ask("/metrics", accept_encoding="gzip")
    assert squeezed.headers["content-encoding"] == "gzip"
    assert "ranksight_" in squeezed.text
    assert int(squeezed.headers["content-length"]) < len(gzip.compress(squeezed.content, 1)) + 100
    assert "content-encoding" not in ask("/metrics", accept_encoding="identity").headers


def test_health_names_the_run_and_the_report_is_the_reports(ask: Ask) -> None:
    assert ask("/healthz").json() == {"status": "ok", "run_id": "run-7", "polls": 1}
    assert ask("/api/report").json() == {"schema": 1}


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/api/report"])
def test_nothing_can_be_changed(ask: Ask, path: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(path, method=method).status_code == 405


def test_a_port_in_use_gives_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listener, moved = http.bind("127.0.0.1", port)
        with listener:
            assert moved
            assert listener.getsockname()[1] > port


def test_port_zero_takes_any_and_says_nothing_of_it() -> None:
    listener, moved = http.bind("127.0.0.1", 0)
    with listener:
        assert not moved


def test_an_address_of_another_host_is_a_clear_error() -> None:
    with pytest.raises(RanksightError, match=r"can't listen on 192\.0\.2\.1: "):
        http.bind("192.0.2.1", 0)
