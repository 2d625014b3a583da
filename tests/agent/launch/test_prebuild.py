"""Which Python a launch command will run."""

import os
import sys
from pathlib import Path

import pytest

from ranksight.agent.launch.prebuild import interpreter


def script(folder: Path, first_line: str) -> str:
    path = folder / "torchrun"
    path.write_text(f"{first_line}\nprint()\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_is_its_own_interpreter() -> None:
    assert interpreter([sys.executable, "train.py"]) == sys.executable


def test_a_script_names_its_interpreter(tmp_path: Path) -> None:
    assert interpreter([script(tmp_path, f"#!{sys.executable}"), "train.py"]) == sys.executable


def test_a_script_may_go_through_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    found = interpreter([script(tmp_path, "#!/usr/bin/env python3")])
    assert found is not None
    assert Path(found).name == "python3"


@pytest.mark.parametrize("first_line", ["#!/bin/sh", "", "\x7fELF"])
def test_other_programs_have_none(tmp_path: Path, first_line: str) -> None:
    assert interpreter([script(tmp_path, first_line)]) is None


def test_a_program_that_is_not_there_has_none() -> None:
    assert interpreter(["no-such-launcher"]) is None
