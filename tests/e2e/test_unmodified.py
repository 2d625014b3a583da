"""Scripts that know nothing of ranksight, launched by torchrun under `ranksight run`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support import ranksight

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
STEPS = 60
# Explicit collectives only, so that every count is known; says when it is half way and waits to be told to go on.
TRAIN = f"""
import pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
weight = torch.zeros(256, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    (weight - 1).square().sum().backward()
    dist.all_reduce(weight.grad)
    dist.all_reduce(torch.ones(8), group=pair)
    optimizer.step()
    if step == {STEPS} // 2:
        pathlib.Path(sys.argv[1]).touch()
        while not pathlib.Path(sys.argv[2]).exists():
            time.sleep(0.01)
dist.barrier()
print("finished", flush=True)
dist.destroy_process_group()
time.sleep(0.2)  # gloo's threads let go of their last work
sys.exit(int(sys.argv[3]))
"""


def launcher(ranks: int, *script: object) -> list[str]:
    return [*ranksight.TORCHRUN, "--nproc-per-node", str(ranks), *map(str, script)]


def test_an_agent_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    half, go = tmp_path / "half", tmp_path / "go"
    process = ranksight.start(tmp_path / "run", launcher(2, "train.py", half, go, 0), cwd=tmp_path)
    ranksight.await_file(half, process)
    agent_file = tmp_path / "run" / "agent.json"
    first = json.loads(agent_file.read_text())["pid"]
    os.kill(first, signal.SIGKILL)
    ranksight.await_true(
        lambda: agent_file.exists() and json.loads(agent_file.read_text())["pid"] != first, process, "no second agent"
    )
    go.touch()
    returncode, out, err = ranksight.finish(process)
    assert returncode == 0, err
    assert out.count("finished") == 2
    report = ranksight.report(tmp_path / "run")
    assert report["run"]["steps"] == STEPS
    assert report["completeness"]["records_dropped"] == 0
    counts = {(row["axis"], row["op"]): row["count"] for row in report["collectives"]["by_op"]}
    # two groups of both ranks: the world and the pair
    assert counts["world", "all_reduce"] + counts.get(("group", "all_reduce"), 0) == 2 * 2 * STEPS
    assert counts["world", "barrier"] == 2


def test_the_launchers_code_is_kept_when_a_script_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "go").touch()
    arguments = launcher(2, "train.py", tmp_path / "half", tmp_path / "go", 3)
    returncode, out, _ = ranksight.run(tmp_path / "run", arguments, cwd=tmp_path)
    assert returncode == 1  # torchrun's own code for a failed rank
    assert out.count("finished") == 2
    assert ranksight.report(tmp_path / "run")["run"]["exit_code"] == 1


@pytest.mark.skipif(not CASES.is_dir(), reason="the acceptance cases are not beside this checkout")
def test_a_healthy_case_is_called_healthy_and_counted_right(tmp_path: Path) -> None:
    shutil.copytree(CASES / "healthy_ddp", tmp_path / "case")
    case = json.loads((tmp_path / "case" / "case.json").read_text())
    torchrun = [str(Path(sys.executable).parent / case["launch"][0]), *case["launch"][1:]]
    returncode, out, err = ranksight.run(tmp_path / "run", torchrun, cwd=tmp_path / "case")
    assert returncode == 0, err
    assert "finished" in out
    report = ranksight.report(tmp_path / "run")
    assert report["verdict"]["healthy"], report["findings"]
    assert (report["run"]["world_size"], report["run"]["steps"]) == (4, 160)
    counts = {row["op"]: row["count"] for row in report["collectives"]["by_op"]}
    assert counts["all_reduce"] == 4 * 160  # one bucket a step and rank
