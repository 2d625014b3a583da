"""The policy over synthetic ranks: what is written down, agreed and handed over, without a real process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ranksight.agent import files
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.observer import Observer
from ranksight.agent.parts import Surroundings
from ranksight.agent.policy import handover
from ranksight.agent.policy.conditions import StopConditions
from ranksight.agent.policy.handover import State
from ranksight.agent.policy.part import Policy
from ranksight.hooks.wire import StopAction
from tests.agent.conftest import Host
from tests.support.ring_writer import RingWriter

NAN = Finding(kind="nonfinite", severity=Severity.CRITICAL, message="It is nan.", advice="", ranks=(1,), first_step=4)
HANG = Finding(kind="rank_not_joined", severity=Severity.CRITICAL, message="It hangs.", advice="", ranks=(1,))


class Job:
    """Two ranks in step 5 and a policy that sees the findings that a test gives it."""

    def __init__(self, host: Host, run_dir: Path, *, enforce: bool = True, action: str = "stop", **policy: Any) -> None:
        self.host, self.run_dir = host, run_dir
        run_dir.mkdir(exist_ok=True)
        self.ranks: list[RingWriter] = [host.rank(rank, 2, local_world_size=2) for rank in range(2)]
        for rank in self.ranks:
            rank.ring["step"] = 5
        condition = {"name": "bad", "kinds": ["nonfinite", "rank_not_joined"], "action": action}
        self.conditions = StopConditions.model_validate({"conditions": [condition], "evidence_seconds": 0.0} | policy)
        self.surroundings = Surroundings(
            "run-7", run_dir, stop_conditions=self.conditions, enforce=enforce, owned=True
        )
        self.policy = Policy(self.surroundings)
        self.observer: Observer = host.observer
        self.observer.faults = lambda: tuple(self.found)  # type: ignore[method-assign]
        self.found: list[Finding] = []

    def roll(self, seconds: float = 0.25) -> None:
        self.host.poll(seconds)
        self.policy.roll(self.observer, self.host.now)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / name).read_text().splitlines()]

    def order(self) -> handover.Order:
        order = handover.read(self.run_dir)
        assert order is not None
        return order

    def leave(self, after: int) -> None:
        for number, rank in enumerate(self.ranks):
            rank.ring["stopped_after_step"] = after
            self.host.end_process(100 + number)


@pytest.fixture
def job(host: Host, tmp_path: Path) -> Job:
    return Job(host, tmp_path / "run")


def test_all_ranks_are_asked_to_leave_after_the_same_step(job: Job) -> None:
    job.roll()
    assert job.policy.sections(job.observer) == {"stop": None}
    job.found = [NAN]
    job.roll()
    assert [rank.ring["stop_after_step"] for rank in job.ranks] == [7, 7]
    assert [rank.ring["stop_action"] for rank in job.ranks] == [StopAction.STOP] * 2
    assert [rank.ring["stop_committed"] for rank in job.ranks] == [1, 1]
    assert (job.order().state, job.order().step, job.order().exit_code) == (State.LEAVING, 7, 75)
    job.leave(after=7)
    job.roll(2)
    assert (job.order().state, job.order().left) == (State.LEFT, {"0": 7, "1": 7})
    stop = job.policy.sections(job.observer)["stop"]
    assert (stop["state"], stop["step"], stop["finding"]["kind"]) == ("left", 7, "nonfinite")
    assert job.policy.exit_code(0) == 75


def test_every_decision_is_in_the_audit_with_its_inputs(job: Job) -> None:
    job.found = [NAN]
    job.roll()
    policy, decision, *stop = job.lines("audit.jsonl")
    assert (policy["event"], policy["acts"], policy["conditions"]["margin_steps"]) == ("policy", True, 2)
    assert (decision["event"], decision["acts"], decision["step"]) == ("decision", True, 5)
    assert decision["decision"]["finding"]["message"] == "It is nan."
    assert decision["ranks"] == [{"rank": 1, "pid": 101, "state": "S", "step": 5, "phase": "startup", "life": 0}]
    assert [line["what"] for line in stop] == ["the ranks are asked to leave after one step", "all ranks leave after step 7"]


@pytest.mark.parametrize("quiet", [{"enforce": False}, {"dry_run": True}, {"action": "observe"}])
def test_what_is_only_observed_changes_nothing(host: Host, tmp_path: Path, quiet: dict[str, Any]) -> None:
    job = Job(host, tmp_path / "run", **quiet)
    job.found = [NAN]
    job.roll()
    assert [rank.ring["stop_request"] for rank in job.ranks] == [0, 0]
    assert handover.read(job.run_dir) is None
    assert job.lines("audit.jsonl")[1]["acts"] is False
    stop = job.policy.sections(job.observer)["stop"]
    assert (stop["state"], stop["exit_code"], stop["reason"]) == ("observed", None, "It is nan.")
    assert job.policy.exit_code(3) == 3


def test_ranks_that_hang_are_not_asked(job: Job) -> None:
    job.found = [HANG]
    job.roll()
    assert [rank.ring["stop_request"] for rank in job.ranks] == [0, 0]
    assert job.order().state is State.ENDING
    assert job.order().end_by_ns <= job.host.now


def test_a_hang_on_the_way_out_ends_the_job(job: Job) -> None:
    job.found = [NAN]
    job.roll()
    job.found = [NAN, HANG]
    job.roll()
    assert job.order().state is State.ENDING
    assert "It hangs" in job.lines("audit.jsonl")[-2]["what"]


def test_ranks_that_do_not_leave_in_time_are_ended(job: Job) -> None:
    job.found = [NAN]
    job.roll()
    job.roll(119)
    assert job.order().state is State.LEAVING
    job.roll(2)
    assert job.order().state is State.ENDING
    assert job.order().end_by_ns <= job.host.now


def test_a_scheduler_is_obeyed_without_conditions_once_there_are_ranks(host: Host, tmp_path: Path) -> None:
    observer = host.observer
    (tmp_path / "run").mkdir()
    policy = Policy(Surroundings("run-7", tmp_path / "run"))
    policy.asked_to_leave()
    policy.roll(observer, host.now)
    assert policy.stopping is None
    host.rank(0, 1, local_world_size=1).ring["step"] = 5
    host.poll(2)
    policy.roll(observer, host.now)
    order = handover.read(tmp_path / "run")
    assert order is not None
    assert (order.state, order.action, order.step) == (State.LEAVING, "checkpoint_and_stop", 7)


def test_an_order_that_can_not_be_written_is_tried_again(job: Job) -> None:
    (job.run_dir / handover.STOP_FILE).mkdir()
    job.found = [NAN]
    job.roll()
    assert [rank.ring["stop_committed"] for rank in job.ranks] == [1, 1]
    (job.run_dir / handover.STOP_FILE).rmdir()
    job.roll()
    assert job.order().state is State.LEAVING


def test_ranks_that_are_started_again_are_ended(job: Job) -> None:
    job.found = [NAN]
    job.roll()
    job.leave(after=-1)
    for rank in range(2):
        job.host.rank(rank, 2, local_world_size=2, generation=1)
    job.roll(2)
    assert job.order().state is State.ENDING
    assert "started again" in job.lines("audit.jsonl")[-2]["what"]


def test_a_job_that_is_through_first_was_not_stopped(job: Job) -> None:
    job.found = [NAN]
    job.roll()
    for number in range(2):
        job.host.end_process(100 + number)
    job.roll(2)
    assert job.order().state is State.LEAVING  # only the launcher's exit code can tell
    files.write_json(job.run_dir / files.EXIT_FILE, {"exit_code": 0})
    job.policy.close(job.observer, job.host.now)
    assert job.order().state is State.COMPLETED
    assert (job.policy.exit_code(0), handover.exit_code(job.run_dir, 0)) == (0, 0)


def test_a_decision_after_the_end_stops_nothing(job: Job) -> None:
    job.roll()
    job.leave(after=-1)
    job.found = [NAN]
    job.roll(2)
    assert handover.read(job.run_dir) is None
    assert job.lines("audit.jsonl")[-1]["job_runs"] is False


def test_a_restarted_agent_goes_on_with_the_stop(job: Job) -> None:
    job.found = [NAN]
    job.roll()
    job.policy = Policy(job.surroundings)
    job.found = []
    job.roll()
    assert [rank.ring["stop_request"] for rank in job.ranks] == [1, 1]
    job.leave(after=7)
    job.roll(2)
    assert job.order().state is State.LEFT


def test_an_agent_that_ends_takes_an_open_proposal_back(job: Job) -> None:
    job.ranks[0].ring["step"] = -1
    job.found = [NAN]
    job.roll()
    assert job.ranks[1].ring["stop_request"] == 0  # not all ranks are in a step
    job.policy.close(job.observer, job.host.now)
    assert job.ranks[1].ring["stop_action"] == StopAction.NONE


def test_findings_are_written_when_found_and_when_they_go_on(job: Job) -> None:
    slow = Finding(kind="straggler", severity=Severity.WARNING, message="slow", advice="", ranks=(0,), last_step=9)
    for seconds, last_step in ((0, 9), (1, 10), (2, 11), (20, 12), (4, 13), (2, 14)):
        job.found = [replace(slow, last_step=last_step)]
        job.roll(seconds)
    job.found = [replace(slow, severity=Severity.CRITICAL)]
    job.roll()
    job.policy.close(job.observer, job.host.now)
    lines = job.lines("findings.jsonl")
    assert [line["event"] for line in lines] == ["begin", "found", "on", "on", "on", "worse", "end"]
    assert [line["finding"]["last_step"] for line in lines[1:-1]] == [9, 11, 12, 14, 9]
    blocks = {block.spec.name: block for block in job.policy.blocks(job.observer)}
    found = dict(blocks["ranksight_findings_total"].series())
    assert found == {("straggler", "critical"): 1, ("straggler", "warning"): 1}
    assert dict(blocks["ranksight_stop_state"].series()) == {(): 0}

