"""The command line as people meet it: help with examples, completion, colours, narrow terminals, errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from ranksight.agent import cli, commands_page, files
from ranksight.agent.examples import EXAMPLES
from tests.support import reports

ROOT: Any = get_command(cli.app)
SHIPPED = Path(__file__).resolve().parents[2] / "dashboards" / "alerts" / "stop_conditions.toml"
NARROW = 60


def leaves(command: Any = ROOT, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its full name."""
    for word, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from leaves(child, f"{name}{word} ")
        else:
            yield f"{name}{word}", child


COMMANDS = dict(leaves())


def called(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ranksight.agent", *arguments], env={**os.environ, **environ}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "today"
    folder.mkdir()
    files.write_json(folder / "report.json", reports.full())
    return folder


def test_the_page_of_commands_is_what_the_commands_say(checkout: Path) -> None:
    assert (checkout / "docs" / "commands.md").read_text() == commands_page.markdown()


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS), "agent/examples.py has one entry for each command"


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_are_understood(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])
    name = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :], parent=Context(ROOT, info_name="ranksight"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option(name: str) -> None:
    command = COMMANDS[name]
    assert len(command.help) > 15 and command.help.rstrip().endswith(".")
    unexplained = [option.name for option in command.params if not getattr(option, "hidden", False) and not option.help]
    assert unexplained == []


def test_what_is_computed_can_be_had_as_json() -> None:
    spoken = {"run", "resume", "agent", "demo", "version"}  # their output is that of a job, or one word
    without = {name for name, command in COMMANDS.items() if "json_output" not in {option.name for option in command.params}}
    assert without == spoken


def test_the_shell_completes_commands_and_options() -> None:
    ask = {"_RANKSIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "ranksight po", "COMP_CWORD": "1"}
    script = "import sys; sys.argv[0] = 'ranksight'; from ranksight.agent.cli import main; main()"
    completed = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **ask}, capture_output=True, text=True, check=False
    )
    assert completed.stdout.split() == ["policy"]


def test_colours_are_left_out_when_asked(run_dir: Path) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    wanted = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert colour.search(called("report", str(run_dir), **wanted, NO_COLOR="").stdout)
    assert not colour.search(called("report", str(run_dir), **wanted, NO_COLOR="1").stdout)


@pytest.mark.parametrize("name", ["report", "compare", "policy check", "help"])
def test_tables_fit_a_narrow_terminal(name: str, run_dir: Path) -> None:
    arguments = {
        "report": ("report", str(run_dir)), "compare": ("compare", str(run_dir), str(run_dir), "--all"),
        "policy check": ("policy", "check", str(SHIPPED)), "help": ("demo", "--help"),
    }[name]  # fmt: skip
    said = called(*arguments, COLUMNS=str(NARROW))
    assert said.returncode == 0, said.stderr
    lines = [line for line in said.stdout.splitlines() if str(run_dir) not in line and str(SHIPPED) not in line]
    assert len(lines) > 5 and max(map(len, lines)) <= NARROW
    if name == "report":
        assert "11 ms" in said.stdout  # numbers are whole, columns are left out


def test_conditions_and_replays_as_json(run_dir: Path) -> None:
    checked = json.loads(called("policy", "check", str(SHIPPED), "--json").stdout)
    assert next(condition["name"] for condition in checked["conditions"]) == "not-finite"
    replayed = json.loads(called("policy", "replay", str(SHIPPED), str(run_dir), "--json").stdout)
    assert replayed["runs"][0]["words"] == "not stopped" and replayed["not_replayed"] == ["slow-steps"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "nowhere"), "nowhere: holds no report.json; expected the directory of a run, which `ranksight run --dir` names"),
        (("compare", "nowhere", "nowhere"), "nowhere: holds no report.json"),
        (("trace", "nowhere", "--step", "1"), "`ranksight run --dir nowhere` writes one while the job runs"),
        (("why", "nowhere", "--step", "1"), "`ranksight run --dir nowhere` writes one while the job runs"),
        (("whatif", "nowhere"), "expected a Parquet file with one row per operation"),
        (("explain", "nowhere"), "nowhere: no such file or folder"),
        (("resume", "nowhere"), "nowhere"),
        (("run", "--config", "nowhere", "--", "true"), "nowhere: can't be read: No such file or directory"),
        (("run", "--enforce", "--", "true"), "there is nothing to enforce without --stop-conditions F"),
        (("demo", "--fault", "stragler"), "did you mean straggler?"),
        (("reprot", "x"), "Did you mean 'report'?"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ranksight.agent", *arguments], cwd=tmp_path, env={**os.environ, "COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert said in ended.stderr and "Traceback" not in ended.stderr
