"""Rules and dashboard against what two agents really export, in a real Prometheus.

Four synthetic ranks on two hosts write their rings while the server scrapes: one all-reduce over both hosts and one
group on each host a step, rank 2 late by 30 of every 50 ms. The hosts' clocks differ by a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ranksight.agent.config import Config, TracesSection
from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.dashboards import alert_rules, recording_rules
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.support.boards import queries
from tests.support.otlp import Collector
from tests.support.prometheus import prometheus
from tests.support.ring_writer import RingWriter

MS = 1_000_000
LATE_RANK = 2
ROOMY = Sizes(collectives=4096, events=4096, tap_table=1 << 14, hooks_table=1 << 14)  # for a machine that stalls
STEP_NS = 50 * MS
# What the member that waits most loses, as a share of its time in the group of all four ranks.
AWAITED_SHARE = (
    'run_group_rank:ranksight_group_awaited_seconds:rate1m{group="1"} / on (run, group) group_left ()'
    " max by (run, group) (run_group_rank:ranksight_group_collective_seconds:rate1m)"
)
LIMIT_SECONDS = 60.0
SILENT = {
    # Nothing hangs here, so nobody is said not to have joined; and the numbers are sound.
    "collectives: Did not join A", "stragglers: Did not join A", "numerics: Findings A",
}  # fmt: skip


class Host:
    """Two ranks, their agent, and the page that it serves. `ahead_ns` is how far this host's clock is ahead."""

    def __init__(self, root: Path, number: int, ahead_ns: int, endpoint: str) -> None:
        self._ahead_ns = ahead_ns
        self._step = 0
        self._next_ns = 0
        folder, proc = root / f"host{number}" / "run-7", root / f"host{number}" / "proc"
        self.ranks = [2 * number, 2 * number + 1]
        self._writers = [
            RingWriter(folder, rank, 4, pid=rank + 1, local_rank=rank % 2, sizes=ROOMY) for rank in self.ranks
        ]
        self._job, self._pair = [], []
        for local, (rank, writer) in enumerate(zip(self.ranks, self._writers, strict=True)):
            (proc / str(rank + 1)).mkdir(parents=True)
            (proc / str(rank + 1) / "stat").write_text(f"{rank + 1} (python train.py) S {'0 ' * 18}1 0\n")
            (proc / str(rank + 1) / "environ").write_bytes(b"LOCAL_WORLD_SIZE=2\0")
            self._job.append(writer.group("1", 4, rank, ranks=[0, 1, 2, 3], axis="dp"))
            self._pair.append(writer.group(f"tp{number}", 2, local, ranks=self.ranks, axis="tp"))
        config = Config(traces=TracesSection(endpoint=endpoint, every=10))
        surroundings = Surroundings(folder.name, None, config)
        self.observer = Observer(folder, clock_ns=self.now_ns, proc=proc, surroundings=surroundings)
        self.page = b""

    def now_ns(self) -> int:
        """The clock of the host."""
        return time.monotonic_ns() + self._ahead_ns

    def train(self) -> None:
        """Write the steps that are over by now, then let the agent read."""
        now = self.now_ns()
        self._next_ns = self._next_ns or now - STEP_NS
        while self._next_ns + STEP_NS <= now:
            for rank, writer, job, pair in zip(self.ranks, self._writers, self._job, self._pair, strict=True):
                self._write_step(writer, job, pair, self._next_ns, late_ns=30 * MS if rank == LATE_RANK else 0)
            self._step, self._next_ns = self._step + 1, self._next_ns + STEP_NS
        self.observer.poll()
        self.page = self.observer.exposition()[0]

    def _write_step(self, writer: RingWriter, job: int, pair: int, begin: int, late_ns: int) -> None:
        step, events = self._step, writer.ring.events
        writer.collective(pair, step, begin + 1 * MS, begin + 3 * MS, step=step)
        writer.collective(job, step, begin + 5 * MS + late_ns, begin + 40 * MS, step=step)
        events.write(wire.EventKind.STEP, begin, begin + STEP_NS, step=step)
        events.write(wire.EventKind.LOSS, begin, begin, step=step, values=(2.5,))
        events.write(wire.EventKind.GRAD_NORM, begin, begin, step=step, values=(0.5,))
        events.write(wire.EventKind.BATCH, begin, begin, step=step, values=(4.0, 4096.0))
        events.write(wire.EventKind.MEMORY, begin, begin, step=step, values=(1e9,))
        for name, value in {
            "step": step + 1, "step_begin_ns": begin + STEP_NS, "tap_cost_ns": 4000 * (step + 1),
            "native_heartbeat_ns": begin, "python_heartbeat_ns": begin,
        }.items():  # fmt: skip
            writer.ring[name] = value


@contextmanager
def served(host: Host) -> Iterator[str]:
    """The address where the host's page can be scraped."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(host.page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of http.server
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.system("prometheus")
def test_rules_and_dashboard_answer_on_a_job_of_two_hosts(tmp_path: Path, free_port: Callable[[], int]) -> None:
    rules = [*sorted(recording_rules.RULES.glob("*.yml")), alert_rules.ALERTS / "alerts.yml"]
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(Collector())
        hosts = [Host(tmp_path, 0, 0, collector.endpoint), Host(tmp_path, 1, 900 * 1000 * MS, collector.endpoint)]
        for host in hosts:
            host.train()
        targets = [stack.enter_context(served(host)) for host in hosts]
        server = stack.enter_context(prometheus(tmp_path, free_port(), targets, rules=rules))
        waiting = {name: query for name, query in queries().items() if name not in SILENT}
        # Groups on one host are complete before the one that spans both.
        waiting["the group of the whole job"] = AWAITED_SHARE
        deadline = time.monotonic() + LIMIT_SECONDS
        while waiting and time.monotonic() < deadline:
            for host in hosts:
                host.train()
            waiting = {name: query for name, query in waiting.items() if not server.query(query)}
            time.sleep(0.1)
        assert waiting == {}
        assert server.unhealthy_rules() == []
        assert server.query("run_group_rank:ranksight_group_not_joined_operations:lag60s") == []
        (awaited,) = server.query(AWAITED_SHARE)
        assert awaited.labels["rank"] == str(LATE_RANK)
        # The others spend 35 ms of a step in the group and the late rank 5 ms.
        assert awaited.value == pytest.approx(30 / 35, abs=0.1)
