"""Stops of real jobs under torchrun: all ranks leave after one step, or everything is ended and nothing is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent.policy import handover
from ranksight.agent.policy.handover import State
from tests.support import ranksight

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("stopping.py")
NEVER = 10**9
STEPS = 'metric = "ranksight_step_in_progress"\nthreshold = 20\n'
STUCK = 'kinds = ["rank_not_joined", "rank_frozen", "rank_dead", "collective_stuck"]\n'
RESTARTS = ("--max-restarts", "2")


def conditions(folder: Path, what: str, action: str, top: str = "") -> Path:
    path = folder / "stop_conditions.toml"
    path.write_text(f'{top}\n[[conditions]]\nname = "test"\n{what}action = "{action}"\n')
    return path


def launch(folder: Path, policy: Path, command: list[str]) -> Any:
    options = ("--port", "0", "--stop-conditions", str(policy), "--enforce")
    return ranksight.start(folder / "run", [*ranksight.TORCHRUN, *RESTARTS, "--nproc-per-node", "2", *command], options=options)


def audit(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "audit.jsonl").read_text().splitlines()]


def order(folder: Path) -> handover.Order:
    found = handover.read(folder / "run")
    assert found is not None
    return found


def nobody_is_left(session: int) -> bool:
    return not ranksight.processes_of_session(session)


def test_a_script_that_knows_nothing_leaves_after_one_step_though_the_agent_is_killed(tmp_path: Path) -> None:
    process = launch(tmp_path, conditions(tmp_path, STEPS, "stop"), [str(SCRIPT), str(NEVER)])
    ranksight.await_file(tmp_path / "run" / handover.STOP_FILE, process)
    agent = json.loads((tmp_path / "run" / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGKILL)  # at any stage of the agreement; the next agent goes on
    code, _, err = ranksight.finish(process)
    stop = ranksight.report(tmp_path / "run")["stop"]
    assert code == 75, err
    assert (stop["state"], stop["acknowledged"]) == ("left", [0, 1])
    assert set(stop["left"].values()) == {stop["step"]}
    assert ranksight.report(tmp_path / "run")["run"]["exit_code"] == 75
    assert nobody_is_left(process.pid)


def test_the_reference_trainer_saves_first(tmp_path: Path) -> None:
    policy = conditions(tmp_path, STEPS + 'restart = "no"\n', "checkpoint_and_stop")
    trainer = ["-m", "ranksight.trainer", "--dp", "2", "--steps", "100000", "--folder", str(tmp_path / "saved")]
    code, out, err = ranksight.finish(launch(tmp_path, policy, trainer))
    assert code == 76, err
    stop = ranksight.report(tmp_path / "run")["stop"]
    steps = stop["step"] + 1
    assert set(stop["left"].values()) == {stop["step"]}
    assert f"stopped after step {steps} as asked" in out
    assert [path.name for path in (tmp_path / "saved").iterdir()] == [f"step-{steps:08}"]


def test_a_number_that_is_not_finite_stops_the_trainer_before_it_gets_into_the_weights(tmp_path: Path) -> None:
    policy = conditions(tmp_path, 'kinds = ["nonfinite"]\n', "stop")
    trainer = [
        "-m", "ranksight.trainer", "--dp", "2", "--steps", "100000", "--folder", str(tmp_path / "saved"),
        "--fault", "nan-gradient:rank=1,step=12",
    ]  # fmt: skip
    code, out, err = ranksight.finish(launch(tmp_path, policy, trainer))
    assert code == 75, err
    skipped = [line.split("/")[0].split()[1] for line in out.splitlines() if "update skipped" in line]
    assert skipped == ["13"]  # the very step, and the weights are sound in the next
    report = ranksight.report(tmp_path / "run")
    stop = report["stop"]
    assert (stop["state"], stop["finding"]["kind"], stop["finding"]["first_step"]) == ("left", "nonfinite", 12)
    assert [finding["action"] for finding in report["findings"] if finding["kind"] == "nonfinite"] == ["stop"]
    assert not list((tmp_path / "saved").glob("step-*"))  # what is in memory may be wrong


def test_sigusr1_asks_for_a_stop_with_a_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    launcher = [*ranksight.TORCHRUN, "--nproc-per-node", "2", str(SCRIPT), str(NEVER), str(saved)]
    process = ranksight.start(tmp_path / "run", launcher)
    assert process.stdout is not None
    process.stdout.readline()
    ranksight.await_file(tmp_path / "run" / "agent.json", process)
    process.send_signal(signal.SIGUSR1)
    code, _, err = ranksight.finish(process)
    assert code == 75, err
    stop = ranksight.report(tmp_path / "run")["stop"]
    assert (stop["state"], stop["decision"]["condition"]) == ("left", "signal")
    assert sorted(path.name for path in saved.iterdir()) == [f"{rank}-{stop['step']}" for rank in (0, 1)]


def test_a_stopped_rank_is_ended_with_evidence_and_torchrun_does_not_restart(tmp_path: Path) -> None:
    policy = conditions(tmp_path, STUCK, "checkpoint_and_stop", "grace_seconds = 1.0")
    process = launch(tmp_path, policy, [str(SCRIPT), str(NEVER)])
    assert process.stdout is not None
    pids: dict[int, int] = {}
    while len(pids) < 2:
        rank, pid, _ = map(int, process.stdout.readline().split())
        pids[rank] = pid
    os.kill(pids[1], signal.SIGSTOP)
    code, out, err = ranksight.finish(process)
    assert code == 75, err
    assert order(tmp_path).state is State.ENDED
    assert nobody_is_left(process.pid)
    assert {int(line.split()[1]) for line in out.splitlines()} <= set(pids.values())  # no other generation began
    for rank in (0, 1):
        assert (tmp_path / "run" / "evidence" / f"rank{rank}" / "stack.txt").exists()
    decisions = [line for line in audit(tmp_path) if line["event"] == "decision"]
    assert decisions[0]["decision"]["finding"]["ranks"] == [1]


