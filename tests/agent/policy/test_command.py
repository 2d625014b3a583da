"""`ranksight policy check` shows what a file does, or what is wrong with it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ranksight.agent import cli
from ranksight.agent.errors import RanksightError


def test_check_shows_each_condition(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        "dry_run = true\n"
        '[[conditions]]\nname = "nan"\nkinds = ["nonfinite"]\naction = "stop"\nexempt_phases = ["evaluation"]\n'
        '[[conditions]]\nname = "loss"\nmetric = "ranksight_loss"\nthreshold = 9.5\ncount = 2\n'
    )
    result = CliRunner().invoke(cli.app, ["policy", "check", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1] == "nan nonfinite (critical) 0 s evaluation stop"
    assert lines[2] == "loss ranksight_loss{} above 9.5, at least 2 0 s - observe"
    assert lines[3].endswith("2 conditions, dry run: nothing is done")


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text("nonsense = 1")
    with pytest.raises(RanksightError, match="nonsense: unknown key"):
        CliRunner().invoke(cli.app, ["policy", "check", str(path)], catch_exceptions=False)
