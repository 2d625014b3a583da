"""Stacks of suspects: what py-spy says of a real process, and the sentence that a finding gets from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.stopped.stacks import Frame, Stack, ask, explain, parse

LOADING = Stack(
    (
        Frame("read", "/usr/lib/python3.11/socket.py", 706),
        Frame("load_batch", "/job/data.py", 41),
        Frame("<module>", "/job/train.py", 9),
    )
)


def finding(kind: str = "rank_not_joined", ranks: tuple[int, ...] = (2,)) -> Finding:
    return Finding(
        kind=kind, severity=Severity.CRITICAL, message="It is late.", advice="Look.", ranks=ranks, evidence={"a": 1}
    )


def test_a_process_is_asked_where_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, threading\n"
        "def wait_for_data():\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "wait_for_data()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        answers = ask({3: process.pid})
        process.communicate("")
    stack = answers[3]
    if isinstance(stack, str) and "ermission" in stack and os.getuid() != 0:
        pytest.skip(f"this machine does not let processes be looked into: {stack}")
    assert isinstance(stack, Stack), stack
    assert stack.place == Frame("wait_for_data", str(script), 4)
    assert [frame.function for frame in stack.frames] == ["wait_for_data", "<module>"]


def test_a_process_that_is_gone_has_a_reason_and_no_stack() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    answer = ask({0: process.pid})[0]
    assert isinstance(answer, str)
    assert answer.startswith("py-spy")


def test_the_main_thread_is_chosen() -> None:
    threads = [
        {"os_thread_id": 8, "thread_name": "loader", "frames": []},
        {"os_thread_id": 7, "thread_name": "", "frames": [{"name": "f", "filename": "/job/a.py", "line": 3}]},
    ]
    assert parse(json.dumps(threads), 7) == Stack((Frame("f", "/job/a.py", 3),))
    with pytest.raises(ValueError, match="main thread"):
        parse("[]", 7)


def test_a_finding_says_where_its_ranks_are_in_the_jobs_own_code() -> None:
    asked: list[Mapping[int, int]] = []

    def asker(pids: Mapping[int, int]) -> dict[int, Stack | str]:
        asked.append(pids)
        return {2: LOADING, 3: LOADING, 5: "py-spy: not permitted"}

    told = explain(finding(ranks=(2, 3, 5)), {0: 10, 2: 12, 3: 13, 5: 15}, asker)
    assert asked == [{2: 12, 3: 13, 5: 15}]
    assert told.message == "It is late. Ranks 2, 3 are in load_batch (/job/data.py:41)."
    assert told.evidence["a"] == 1
    assert told.evidence["stacks"]["2"][0] == "read (/usr/lib/python3.11/socket.py:706)"
    assert told.evidence["stacks"]["5"] == "py-spy: not permitted"


@pytest.mark.parametrize("kind", ["rank_dead", "straggler"])
def test_nobody_is_asked_about_other_kinds(kind: str) -> None:
    def asker(pids: Mapping[int, int]) -> dict[int, Stack | str]:
        raise AssertionError(pids)

    assert explain(finding(kind), {2: 12}, asker) == finding(kind)


def test_at_most_four_suspects_are_asked() -> None:
    def asker(pids: Mapping[int, int]) -> dict[int, Stack | str]:
        assert len(pids) == 4
        return {}

    explain(finding(ranks=tuple(range(64))), {rank: rank + 100 for rank in range(64)}, asker)
