"""The main job end to end: eight ranks (pp2 dp2 tp2 ep4) under ranksight, a real Prometheus beside them.

One watched run serves all checks; a second, bare run shows that watching changed no number.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import ranksight
from tests.support.jobs import free_port
from tests.support.prometheus import Prometheus, Sample, prometheus

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.system("prometheus")]

STEPS = 25
AXES = ("dp", "tp", "pp", "ep")
P99 = 'max by (axis) (ranksight_collective_duration_tail_seconds{tail="p99", window="1m"})'


def trainer(folder: Path) -> list[str]:
    plan = ["--pp", "2", "--dp", "2", "--tp", "2", "--ep", "4"]
    return [
        *ranksight.TORCHRUN, "--nproc-per-node", "8", "-m", "ranksight.trainer", *plan, "--steps", str(STEPS),
        "--folder", str(folder),
    ]  # fmt: skip


class Watched(NamedTuple):
    """What a watched run left."""

    run_dir: Path
    checkpoints: Path
    output: str
    during: dict[str, list[Sample]]  # answers of Prometheus while the job ran
    report: dict[str, Any]


def scraped(server: Prometheus, process: subprocess.Popen[str]) -> dict[str, list[Sample]]:
    """Wait, while the job runs, until the tails of every axis are there; then ask for more."""

    def tails_of_all_axes() -> bool:
        return {sample.labels["axis"] for sample in server.query(P99)} >= set(AXES)

    ranksight.await_true(tails_of_all_axes, process, "no tails of every axis", timeout=240)
    queries = {
        "p99": P99,
        "up": "up",
        "operations": "sum by (axis) (ranksight_collective_operations_total)",
    }
    return {name: server.query(expr) for name, expr in queries.items()}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("watched")
    process = ranksight.start(folder / "run", trainer(folder / "checkpoints"))
    try:
        port = json.loads(ranksight.await_file(folder / "run" / "agent.json", process).read_text())["port"]
        with prometheus(folder, free_port(), targets=[f"127.0.0.1:{port}"]) as server:
            during = scraped(server, process)
            returncode, out, err = ranksight.finish(process, 300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert returncode == 0, err
    return Watched(folder / "run", folder / "checkpoints", out, during, ranksight.report(folder / "run"))


def test_prometheus_has_the_tails_of_every_axis(watched: Watched) -> None:
    by_axis = {sample.labels["axis"]: sample.value for sample in watched.during["p99"]}
    assert set(AXES) <= set(by_axis)
    assert all(0 < by_axis[axis] < 60 for axis in AXES)
    assert [sample.value for sample in watched.during["up"]] == [1.0]


def test_the_report_counts_what_the_plan_makes(watched: Watched) -> None:
    report = watched.report
    assert (report["run"]["world_size"], report["run"]["steps"], report["run"]["tap"]) == (8, STEPS, "native")
    completeness = report["completeness"]
    assert completeness["ranks_seen"] == completeness["ranks_expected"] == 8
    assert completeness["records_dropped"] == 0
    assert completeness["instances_incomplete"] == 0
    rows = {(row["axis"], row["op"]): row for row in report["collectives"]["by_op"]}
    # One all-reduce of the whole job per step and rank carries loss, norm, flags and loads.
    assert rows["world", "all_reduce"]["count"] == 8 * STEPS
    # 1F1B: every stage boundary sends each of 2 microbatches forward and its gradient back, on 4 pairs of ranks.
    assert rows["pp", "send"]["count"] == rows["pp", "recv"]["count"] >= 2 * 2 * 4 * STEPS
    for axis in AXES:
        mine = [row for (name, _), row in rows.items() if name == axis]
        assert all(row["duration_seconds"]["p99"] > 0 for row in mine)
        assert all(row["unfinished"] == 0 for row in mine)


def test_run_json_has_the_layout_and_the_corpus(watched: Watched) -> None:
    described = json.loads((watched.run_dir / "run.json").read_text())
    assert len(described["layout"]["ranks"]) == 8
    assert {group["axis"] for group in described["layout"]["groups"]} >= set(AXES)
    assert described["facts"]["corpus"] == "pydoc_data.topics"
    assert f"sha256 {described['facts']['corpus_sha256']}" in watched.output


def test_every_rank_reports_its_steps_and_loss(watched: Watched) -> None:
    per_rank = watched.report["steps"]["per_rank"]
    assert [row["rank"] for row in per_rank] == list(range(8))
    assert {row["steps"] for row in per_rank} == {STEPS}
    assert len({row["loss"] for row in per_rank}) == 1
    assert f"loss {per_rank[0]['loss']:.4f}" in watched.output.splitlines()[-1]


def test_watching_changes_no_number(watched: Watched, tmp_path: Path) -> None:
    bare = subprocess.run(
        trainer(tmp_path / "checkpoints"), env=ranksight.environment(), capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip

    def numbers(output: str) -> list[list[str]]:
        # loss and gradient norm of each step; the speed is the only thing that may differ
        return [line.split()[2:7] for line in output.splitlines() if line.startswith("step")]

    assert numbers(bare.stdout) == numbers(watched.output)
    assert len(numbers(bare.stdout)) == STEPS

    def weights(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.distcp"))}

    assert weights(tmp_path / "checkpoints") == weights(watched.checkpoints)
    assert weights(watched.checkpoints)
