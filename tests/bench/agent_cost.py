"""What the agent costs: CPU of polling and of a scrape, memory over a soak. Synthetic records, simulated clock.

    python tests/bench/agent_cost.py [--steps 20000] [--archive] [--json]

8 ranks (pp 2, dp 2, tp 2), 10 steps a second, 60 operations and 24 events a step and rank (what the reference trainer
writes with four microbatches), polled twice a second. CPU time is that of the agent's thread in `Observer.poll` only;
writing the records is not counted. `--archive` has the archive written, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.agent.reading.slots import COLLECTIVE, Rows
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.support.ring_writer import RingWriter

RANKS, STEPS_PER_SECOND, OPS_PER_STEP, POLLS_PER_SECOND = 8, 10, 60, 2
STEP_NS = 1_000_000_000 // STEPS_PER_SECOND
BEGIN_NS = 1_000_000_000_000


def groups_of(writer: RingWriter, rank: int) -> list[int]:
    """Groups dp, tp, pp and world of one rank in the table of its ring."""
    pp, dp, tp = rank // 4, rank // 2 % 2, rank % 2
    meshes = {
        "dp": [pp * 4 + d * 2 + tp for d in range(2)],
        "tp": [pp * 4 + dp * 2 + t for t in range(2)],
        "pp": [p * 4 + dp * 2 + tp for p in range(2)],
        "world": list(range(RANKS)),
    }
    return [
        writer.group(f"{axis}{ranks[0]}", len(ranks), ranks.index(rank), ranks=ranks, axis=axis)
        for axis, ranks in meshes.items()
    ]


def step_rows(groups: list[int], rank: int, step: int, jitter: np.ndarray) -> Rows:
    """One step of one rank: 20 dp, 24 tp, 8 pp and 8 world operations."""
    rows = np.zeros(OPS_PER_STEP, COLLECTIVE)
    kinds = np.repeat([0, 1, 2, 3], [20, 24, 8, 8])
    number = np.concatenate([np.arange(count) for count in (20, 24, 8, 8)])
    per_step = np.array([20, 24, 4, 8])[kinds]  # of the 8 pp operations, 4 go each way
    first = rank // 4 == 0
    sends = (kinds == 2) & ((number < 4) == first)
    rows["op"] = np.array([wire.OP_CODES[n] for n in ("allreduce_", "_allgather_base_", "recv_", "barrier")])[kinds]
    rows["op"][sends] = wire.OP_CODES["send"]
    rows["peer"] = np.where(kinds == 2, int(first), -1)
    rows["group"] = np.array(groups)[kinds]
    rows["group_seq"] = step * per_step + np.where(kinds == 2, number % 4, number)
    rows["bytes"] = 1 << (12 + number % 4 * 3)
    rows["step"], rows["thread"] = step, 7
    slot = np.arange(OPS_PER_STEP) * (STEP_NS // OPS_PER_STEP)
    rows["enqueue_ns"] = BEGIN_NS + step * STEP_NS + slot + jitter[rank]
    rows["return_ns"] = rows["enqueue_ns"] + 20_000
    rows["complete_ns"] = BEGIN_NS + step * STEP_NS + slot + jitter.max(axis=0) + 300_000
    rows["flags"] = np.where(number % 2 == 0, wire.CollectiveFlag.ASYNC, 0)
    rows["wait_begin_ns"] = np.where(number % 4 == 0, rows["enqueue_ns"] + 100_000, 0)
    rows["wait_end_ns"] = np.where(number % 4 == 0, rows["complete_ns"] + 1_000, 0)
    return rows


def write_events(writer: RingWriter, rank: int, step: int) -> None:
    """One step of one rank: 24 events, and a memory sample twice a second."""
    write, begin, kinds = writer.ring.events.write, BEGIN_NS + step * STEP_NS, wire.EventKind
    part = STEP_NS // 16
    for number, phase in enumerate((2, 3, 4, 3, 4, 3, 4, 5)):  # data, then forward and backward by turns, optimizer
        write(kinds.PHASE, begin + number * part, begin + (number + 1) * part, step=step, code=phase)
    for number in range(8):
        at, action = begin + number * part, wire.Action.BACKWARD if number % 2 else wire.Action.FORWARD
        write(kinds.PIPELINE, at, at + part, step=step, code=action, stage=rank // 4, microbatch=number // 2)
    write(kinds.PIPELINE, begin, begin + 8 * part, step=step, code=wire.Action.SCHEDULE)
    write(kinds.DATA, begin, begin + part, step=step)
    write(kinds.BATCH, begin, begin, step=step, values=(8.0, 512.0, 8.0 * step, 7.0))
    for layer in range(2):
        write(kinds.EXPERTS, begin, begin, step=step, layer=layer, values=(64.0,) * 8)
    for kind in (kinds.LOSS, kinds.GRAD_NORM):
        write(kind, begin + STEP_NS - 1, begin + STEP_NS - 1, step=step, values=(2.0,))
    if step % 5 == 0:
        write(kinds.MEMORY, begin, begin, step=step, values=(1e9,))
    write(kinds.STEP, begin, begin + STEP_NS, step=step, values=(0.05, 4096.0))


def resident_bytes() -> int:
    """Anonymous resident memory of this process; the rings are shared memory and not counted."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def measure(steps: int, directory: Path, archive: bool) -> dict[str, float]:
    """Run the synthetic job through an observer."""
    sizes = Sizes(collectives=16384, events=4096)
    writers = [RingWriter(directory / "run", rank, RANKS, sizes=sizes) for rank in range(RANKS)]
    groups = [groups_of(writer, rank) for rank, writer in enumerate(writers)]
    proc = directory / "proc"
    for writer in writers:
        folder = proc / str(writer.ring["pid"])
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{folder.name} (python) S {'0 ' * 18}{writer.ring['start_ticks']} 0\n")
    clock = [BEGIN_NS]
    (directory / "archived").mkdir()
    surroundings = Surroundings("run", directory / "archived" if archive else None)
    observer = Observer(directory / "run", clock_ns=lambda: clock[0], proc=proc, surroundings=surroundings)
    random = np.random.default_rng(0)
    scrapes: dict[bool, list[float]] = {False: [], True: []}
    memory: list[int] = []
    for step in range(steps):
        jitter = random.integers(0, 200_000, (RANKS, OPS_PER_STEP))
        for rank, writer in enumerate(writers):
            rows = step_rows(groups[rank], rank, step, jitter)
            writer.bulk(rows)
            writer.ring["step"] = step + 1
            write_events(writer, rank, step)
        clock[0] = BEGIN_NS + (step + 1) * STEP_NS
        if step * POLLS_PER_SECOND // STEPS_PER_SECOND != (step - 1) * POLLS_PER_SECOND // STEPS_PER_SECOND:
            observer.poll()
        if step % 100 == 99:  # a scrape every 10 s
            for openmetrics in (False, True):
                begin_cpu = time.thread_time()
                text, _ = observer.exposition(openmetrics)
                scrapes[openmetrics].append(time.thread_time() - begin_cpu)
        if step % (steps // 10) == steps // 10 - 1:
            memory.append(resident_bytes())
    clock[0] += 2_000_000_000
    observer.poll()
    simulated = steps / STEPS_PER_SECOND
    facts = observer.completeness()
    captured = sum(rank.collectives.captured for rank in facts.ranks)
    assert not observer.parts.failed, observer.parts.failed
    return {
        "steps": steps,
        "records": captured,
        "records_dropped": sum(rank.collectives.dropped for rank in facts.ranks),
        "instances": int(observer.series.instances.sum()),
        "poll_core_fraction": observer.poll_seconds / simulated,
        "poll_microseconds_per_record": observer.poll_seconds / captured * 1e6,
        "scrape_text_ms_p50": float(np.median(scrapes[False])) * 1e3,
        "scrape_openmetrics_ms_p50": float(np.median(scrapes[True])) * 1e3,
        "scrape_openmetrics_ms_max": max(scrapes[True]) * 1e3,
        "scrape_lines": text.count(b"\n"),
        "memory_mb_at_tenths": [round(value / 1e6, 1) for value in memory],  # type: ignore[dict-item]
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--archive", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = measure(arguments.steps, Path(folder), arguments.archive)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:30} {value}")


if __name__ == "__main__":
    main()
