"""`ranksight run` around launchers that are not even training: exit codes, signals, ports, directories, a dying agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from ranksight.agent.policy import handover
from tests.support import ranksight

SLEEPER = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
# ends only when its own child was told to: what a launcher with ranks does
STUBBORN = """
import pathlib, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path(sys.argv[1]).touch()
child.wait()
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('hello')", 0),
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("raise ValueError('mine')", 1),
    ],
)
def test_the_launchers_exit_code_is_kept(tmp_path: Path, code: str, expected: int) -> None:
    returncode, out, _ = ranksight.run(tmp_path / "run", python(code))
    assert returncode == expected
    assert out == ("hello\n" if expected == 0 else "")
    report = ranksight.report(tmp_path / "run")
    assert report["schema"] == 1
    assert report["run"]["exit_code"] == expected


def test_a_run_without_ranks_is_never_healthy(tmp_path: Path) -> None:
    returncode, _, err = ranksight.run(tmp_path / "run", python("pass"))
    report = ranksight.report(tmp_path / "run")
    assert returncode == 0
    assert report["verdict"]["healthy"] is False
    assert [finding["kind"] for finding in report["findings"]] == ["incomplete_data"]
    assert report["completeness"]["ranks_seen"] == 0
    assert "not healthy" in err


def test_run_json_says_what_ran_and_hides_secrets(tmp_path: Path) -> None:
    launcher = python("pass", "--api-key=abc123", "--token", "xyz789", "--lr", "0.1")
    ranksight.run(tmp_path / "run", launcher)
    text = (tmp_path / "run" / "run.json").read_text()
    described = json.loads(text)
    assert described["command"][-2:] == ["--lr", "0.1"]
    assert described["environment"]["cpus"] == os.cpu_count()
    assert "abc123" not in text
    assert "xyz789" not in text


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    process = ranksight.start(tmp_path / "run", python("pass"))
    ranksight.finish(process)
    assert ranksight.processes_of_session(process.pid) == []
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left == ["agent.json", "agent.log", "findings.jsonl", "report.html", "report.json", "run.json"]
    rings = Path(f"/dev/shm/ranksight-{os.getuid()}")
    run_id = ranksight.report(tmp_path / "run")["run"]["id"]
    assert not (rings / run_id).exists()


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    ranksight.run(tmp_path / "run", python("pass"))
    before = (tmp_path / "run" / "report.json").read_bytes()
    returncode, _, err = ranksight.run(tmp_path / "run", python("print('never')"))
    assert returncode == 2
    assert str(tmp_path / "run") in err
    assert "--dir" in err
    assert (tmp_path / "run" / "report.json").read_bytes() == before


def test_a_launcher_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    returncode, _, err = ranksight.run(tmp_path / "run", ["no-such-launcher"])
    assert returncode == 2
    assert err.splitlines()[-1] == "ranksight: can't start 'no-such-launcher': No such file or directory"


def test_sigterm_is_handed_on_and_a_report_is_written(tmp_path: Path) -> None:
    process = ranksight.start(tmp_path / "run", python(SLEEPER, tmp_path / "started"))
    ranksight.await_file(tmp_path / "started", process)
    process.send_signal(signal.SIGTERM)
    returncode, _, _ = ranksight.finish(process)
    assert returncode == 128 + signal.SIGTERM
    assert ranksight.report(tmp_path / "run")["run"]["exit_code"] == 128 + signal.SIGTERM
    assert ranksight.processes_of_session(process.pid) == []


@pytest.mark.slow
def test_a_launcher_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    process = ranksight.start(tmp_path / "run", python(STUBBORN, tmp_path / "started"))
    ranksight.await_file(tmp_path / "started", process)
    process.send_signal(signal.SIGTERM)
    returncode, _, _ = ranksight.finish(process)
    assert returncode == 128 + signal.SIGKILL
    assert ranksight.processes_of_session(process.pid) == []
    assert (tmp_path / "run" / "report.json").exists()


def agent_of(run_dir: Path, process: object) -> dict[str, object]:
    found: dict[str, object] = json.loads(ranksight.await_file(run_dir / "agent.json", process).read_text())  # type: ignore[arg-type]
    return found


def test_two_runs_at_once_and_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        both = [
            ranksight.start(tmp_path / name, python(SLEEPER, tmp_path / f"{name}.started"), options=("--port", port))
            for name in ("one", "two")
        ]
        agents = [agent_of(tmp_path / name, process) for name, process in zip(("one", "two"), both, strict=True)]
        assert len({agent["port"] for agent in agents} | {int(port)}) == 3
        for agent in agents:
            with urllib.request.urlopen(f"http://127.0.0.1:{agent['port']}/healthz", timeout=10) as answer:
                assert json.load(answer)["run_id"] == agent["run_id"]
            with urllib.request.urlopen(f"http://127.0.0.1:{agent['port']}/metrics", timeout=10) as answer:
                assert b"ranksight_" in answer.read()
        for name, process in zip(("one", "two"), both, strict=True):
            process.send_signal(signal.SIGINT)
            ranksight.finish(process)
            assert f"port {port} is in use" in (tmp_path / name / "agent.log").read_text()


def test_a_killed_agent_is_started_again(tmp_path: Path) -> None:
    process = ranksight.start(tmp_path / "run", python(SLEEPER, tmp_path / "started"))
    first = agent_of(tmp_path / "run", process)["pid"]
    ranksight.await_file(tmp_path / "started", process)
    os.kill(int(str(first)), signal.SIGKILL)
    agent_file = tmp_path / "run" / "agent.json"
    ranksight.await_true(
        lambda: agent_file.exists() and f'"pid": {first},' not in agent_file.read_text(), process, "no second agent"
    )
    process.send_signal(signal.SIGINT)
    ranksight.finish(process)
    assert ranksight.report(tmp_path / "run")["run"]["id"]


def test_an_agent_ends_with_its_run(tmp_path: Path) -> None:
    process = ranksight.start(tmp_path / "run", python(SLEEPER, tmp_path / "started"))
    agent = psutil.Process(int(str(agent_of(tmp_path / "run", process)["pid"])))
    ranksight.await_file(tmp_path / "started", process)
    launcher = [child for child in psutil.Process(process.pid).children() if child.pid != agent.pid]
    process.kill()
    agent.wait(timeout=20)
    assert (tmp_path / "run" / "report.json").exists()
    for child in launcher:
        child.kill()
    process.communicate(timeout=20)


def test_report_is_private_to_nobody_but_rings_are(tmp_path: Path) -> None:
    process = ranksight.start(tmp_path / "run", python(SLEEPER, tmp_path / "started"))
    run_id = agent_of(tmp_path / "run", process)["run_id"]
    rings = Path(f"/dev/shm/ranksight-{os.getuid()}/{run_id}")
    assert stat.S_IMODE(rings.stat().st_mode) == 0o700
    process.send_signal(signal.SIGTERM)
    ranksight.finish(process)


def test_an_order_to_stop_is_carried_out_without_a_word_of_the_agent(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = ranksight.start(run_dir, python(STUBBORN, tmp_path / "on"))
    ranksight.await_file(tmp_path / "on", process)
    now = time.monotonic_ns()
    order = handover.Order(
        state=handover.State.ENDING, action="kill", reason="by hand", decided_ns=now, end_by_ns=now, grace_seconds=0.2,
        exit_code=76,
    )  # fmt: skip
    handover.write(run_dir, order)
    code, _, err = ranksight.finish(process)
    assert code == 76, err
    assert ranksight.processes_of_session(process.pid) == []
