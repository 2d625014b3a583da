"""Real processes are ended, politely first, and nobody who belongs to the run is left."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ranksight.agent.policy.audit import Log
from ranksight.agent.policy.conditions import Action, StopConditions
from ranksight.agent.policy.engine import Decision
from ranksight.agent.policy.evidence import Evidence, Suspect
from ranksight.agent.policy.handover import State
from ranksight.agent.policy.processes import Ending, of_run, tree
from ranksight.agent.policy.stopping import Job, Stopping
from ranksight.hooks.ring import ENV_RUN_ID

# A parent whose child ignores SIGTERM; the parent ends at once when it is asked, and leaves the child to init.
JOB = """
import signal, subprocess, sys, time
CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
child.stdout.readline()
signal.signal(15, lambda *_: sys.exit(0))
print(child.pid, flush=True)
time.sleep(99)
"""


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def job(run_id: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with subprocess.Popen(
        [sys.executable, "-c", JOB], stdout=subprocess.PIPE, env={ENV_RUN_ID: run_id}, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            for member in of_run(run_id):
                member.kill()


def until_gone(ending: Ending) -> None:
    deadline = time.monotonic() + 60
    while not ending.tick(time.monotonic_ns()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_tree_and_the_run_are_the_same_processes(job: tuple[subprocess.Popen[bytes], int], run_id: str) -> None:
    process, child = job
    assert {member.pid for member in tree([process.pid])} == {process.pid, child}
    assert of_run(run_id) == tree([process.pid])


def test_who_does_not_end_when_asked_is_killed_even_as_an_orphan(
    job: tuple[subprocess.Popen[bytes], int], run_id: str
) -> None:
    process, child = job
    ending = Ending(lambda: of_run(run_id), [process.pid], 0.2, time.monotonic_ns())
    until_gone(ending)
    assert process.wait() == 0  # it was asked
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert of_run(run_id) == set()


def test_an_agent_without_a_launcher_ends_the_ranks_itself(
    job: tuple[subprocess.Popen[bytes], int], run_id: str, tmp_path: Path
) -> None:
    process, _ = job
    policy = StopConditions(grace_seconds=0.2, evidence_seconds=0.0)
    decision = Decision("c", Action.KILL, "It is so.", (0,), 75)
    now = time.monotonic_ns()
    stopping = Stopping.begin(Job(run_id, tmp_path, False, policy), decision, Log(None), now, None)
    deadline = time.monotonic() + 60
    while not stopping.order.state.over:
        state = "S" if of_run(run_id) else None
        stopping.tick([Suspect(0, process.pid, tmp_path / "none.ring", state)], time.monotonic_ns(), 0.0)
        process.poll()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert stopping.order.state is State.ENDED
    assert of_run(run_id) == set()


def test_evidence_has_stack_facts_log_and_ring(tmp_path: Path) -> None:
    log, ring = tmp_path / "rank.log", tmp_path / "a.ring"
    ring.write_bytes(b"ring")
    program = "import time\ndef stuck():\n    print('last words', flush=True)\n    time.sleep(99)\nstuck()"
    with log.open("wb") as out, subprocess.Popen([sys.executable, "-c", program], stdout=out) as process:
        try:
            deadline = time.monotonic() + 60
            while not log.stat().st_size:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            evidence = Evidence(tmp_path / "evidence", [Suspect(3, process.pid, ring, "S")], 30.0)
            evidence.start()
            while not evidence.done:
                time.sleep(0.01)
        finally:
            process.kill()
    folder = tmp_path / "evidence" / "rank3"
    assert (folder / "log.txt").read_text() == "last words\n"
    assert (folder / "a.ring").read_bytes() == b"ring"
    assert f'"pid": "{process.pid}"' in (folder / "proc.json").read_text()
    assert "stuck" in (folder / "stack.txt").read_text() or "ermission" in (folder / "stack.txt").read_text()
