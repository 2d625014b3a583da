"""`ranksight doctor`: honest about what is there, exit code 1 only when nothing can be watched."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ranksight.agent.doctor import Check, examine, render, to_json, usable
from ranksight.agent.errors import RanksightError


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Check]:
    proc = tmp_path_factory.mktemp("proc")
    (proc / "sys/kernel/yama").mkdir(parents=True)
    (proc / "sys/kernel/yama/ptrace_scope").write_text("0\n")
    there = {"g++": "/usr/bin/g++", sys.executable: sys.executable}
    return {check.name: check for check in examine(sys.executable, proc, there.get)}


def test_what_is_there_is_found_and_what_is_not_is_said_with_its_price(checks: dict[str, Check]) -> None:
    assert checks["C++ compiler"].found == "/usr/bin/g++"
    assert checks["torch of the jobs"].ok
    assert "gloo" in checks["torch of the jobs"].found
    assert checks["ptrace"].ok
    assert not checks["prometheus"].ok
    assert not checks["pressure stall information"].ok
    assert all(check.ok or check.without for check in checks.values())


def test_optional_things_do_not_make_it_unusable(checks: dict[str, Check]) -> None:
    assert usable(tuple(checks.values()))
    assert not usable((*checks.values(), Check("torch", False, "", "nothing", needed=True)))


def test_json_and_table_say_the_same(checks: dict[str, Check]) -> None:
    all_checks = tuple(checks.values())
    assert [entry["name"] for entry in json.loads(to_json(all_checks))["checks"]] == list(checks)
    out = io.StringIO()
    render(all_checks, Console(file=out, width=200, no_color=True))
    for name in checks:
        assert name in out.getvalue()


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RanksightError, match="no-such-python"):
        examine("no-such-python", tmp_path)
