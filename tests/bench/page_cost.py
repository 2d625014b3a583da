"""What the live page costs with a long run of many ranks behind it: time of each answer, bytes of a whole load.

    python tests/bench/page_cost.py [--ranks 64] [--steps 100000] [--json]

Synthetic records: every step of every rank, losses of one data parallel replica, and 40 operations a step on the last
200 steps. Answers are timed as the agent gives them, through its whole HTTP application, when nothing is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ranksight.agent.export import http
from ranksight.agent.observer import Observer
from ranksight.agent.page import pages, routes
from ranksight.agent.reading.slots import COLLECTIVE, EVENT
from ranksight.agent.report.build import build
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.support.ring_writer import RingWriter

STEP_NS, BEGIN_NS = 100_000_000, 1_000_000_000_000
AT_ONCE = 2_000  # steps between two polls
BUSY_STEPS, OPS = 200, 40
ASKED = 10


class Job:
    """Ranks of data parallel pairs of 8-way tensor parallel groups, and the agent that has read all their steps."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.now = BEGIN_NS
        sizes = Sizes(collectives=16384, events=16384)
        self.writers = [RingWriter(folder / "run", rank, ranks, sizes=sizes) for rank in range(ranks)]
        self.groups = []
        for rank, writer in enumerate(self.writers):
            node = [rank // 8 * 8 + peer for peer in range(8)]
            replicas = list(range(rank % 8, ranks, 8))
            self.groups.append(
                [
                    writer.group(f"tp{rank // 8}", 8, rank % 8, ranks=node, axis="tp"),
                    writer.group(f"dp{rank % 8}", len(replicas), rank // 8, ranks=replicas, axis="dp"),
                ]
            )
            proc = folder / "proc" / str(writer.ring["pid"])
            proc.mkdir(parents=True)
            (proc / "stat").write_text(f"{proc.name} (python) S {'0 ' * 18}{writer.ring['start_ticks']} 0\n")
        self.observer = Observer(folder / "run", clock_ns=lambda: self.now, proc=folder / "proc")
        self.random = np.random.default_rng(0)

    def train(self, first: int, last: int) -> None:
        """Write steps and read them."""
        steps = np.arange(first, last)
        jitter = self.random.integers(0, STEP_NS // 10, len(steps))
        for rank, writer in enumerate(self.writers):
            rows = np.zeros(len(steps), EVENT)
            rows["kind"], rows["step"] = wire.EventKind.STEP, steps
            rows["begin_ns"] = BEGIN_NS + steps * STEP_NS
            rows["end_ns"] = rows["begin_ns"] + STEP_NS - jitter
            if rank < 8:
                losses = rows.copy()
                losses["kind"], losses["end_ns"], losses["n_values"] = wire.EventKind.LOSS, losses["begin_ns"], 1
                losses["values"][:, 0] = 3 + 5 * np.exp(-steps / 10_000)
                rows = np.concatenate([rows, losses])
            put_events(writer, rows)
            writer.ring["step"] = last
        self.now = BEGIN_NS + last * STEP_NS
        self.observer.poll()

    def communicate(self, first: int, last: int) -> None:
        """Operations of some steps."""
        for step in range(first, last):
            for rank, writer in enumerate(self.writers):
                rows = np.zeros(OPS, COLLECTIVE)
                number = np.arange(OPS)
                rows["op"] = np.array([wire.OP_CODES[name] for name in ("allreduce_", "_allgather_base_")])[number % 2]
                rows["group"] = np.array(self.groups[rank])[number % 2]
                rows["group_seq"] = step * OPS // 2 + number // 2
                rows["bytes"], rows["step"], rows["peer"] = 1 << (10 + number % 5 * 4), step, -1
                rows["enqueue_ns"] = self.now + number * 1_000_000 + rank * 1_000
                rows["return_ns"] = rows["enqueue_ns"] + 20_000
                rows["complete_ns"] = self.now + number * 1_000_000 + 500_000
                writer.bulk(rows)
            self.now += STEP_NS
            if step % 50 == 49:
                self.observer.poll()
        self.now += 2_000_000_000
        self.observer.poll()


def put_events(writer: RingWriter, rows: np.ndarray) -> None:
    """Many ended events at once."""
    slots = np.frombuffer(writer.ring.buffer, EVENT, writer.ring["events_slots"], writer.ring["events_offset"])
    head = writer.ring["events_head"]
    rows["ticket"] = np.arange(head + 1, head + 1 + len(rows))
    for name in ("microbatch", "stage", "layer"):
        rows[name] = -1
    slots[np.arange(head, head + len(rows)) % len(slots)] = rows
    writer.ring["events_head"] = head + len(rows)


async def ask(job: Job) -> dict[str, Any]:
    """Time every answer of the page, each with a report of its own."""
    application = http.app(job.observer, lambda: build(job.observer, "run", None), dict)
    found: dict[str, Any] = {"milliseconds": {}, "bytes": {}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://agent") as client:
        for path in ("/", "/api/page", "/static/page.js", "/static/page.css", pages.plotly_path()):
            times = []
            for _ in range(ASKED):
                await asyncio.sleep(routes.FRESH_SECONDS if path == "/api/page" else 0)
                begin = time.perf_counter()
                answer = await client.get(path, headers={"Accept-Encoding": "gzip"})
                times.append(1e3 * (time.perf_counter() - begin))
                assert answer.status_code == 200
            found["milliseconds"][path] = {"median": float(np.median(times)), "max": max(times)}
            found["bytes"][path] = int(answer.headers["content-length"])
    return found | {"bytes_of_a_load": sum(found["bytes"].values())}


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = Job(Path(folder), arguments.ranks)
        for first in range(0, arguments.steps, AT_ONCE):
            job.train(first, min(first + AT_ONCE, arguments.steps))
        job.communicate(arguments.steps - BUSY_STEPS, arguments.steps)
        found = asyncio.run(ask(job)) | {"ranks": arguments.ranks, "steps": build(job.observer, "run", None)["run"]["steps"]}
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['ranks']} ranks, {found['steps']} steps; {found['bytes_of_a_load'] / 1e6:.2f} MB a load")
    for path, times in found["milliseconds"].items():
        print(f"{path:32} {times['median']:8.1f} ms median {times['max']:8.1f} ms most {found['bytes'][path]:9,} bytes")


if __name__ == "__main__":
    main()
