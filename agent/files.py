"""Writing files so that nobody ever reads half of one: write beside, fsync, rename, fsync the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ranksight.agent.errors import RunDirError

# Names within a run directory that more than one process knows.
EXIT_FILE = "exit.json"
AGENT_FILE = "agent.json"


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data`, whole or not at all. RunDirError names the file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RunDirError(f"{path}: can't write it: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON; a number that is not finite is an error here rather than a broken file."""
    write_atomically(path, to_json(value).encode())


def to_json(value: Any) -> str:
    """`value` as one line per field; ValueError for numbers that JSON does not have."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """The JSON in `path`; RunDirError names the file and what is wrong with it."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunDirError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise RunDirError(f"{path}: can't read it: {error}") from error


def read_report(run_dir: Path) -> Any:
    """report.json of a run; RunDirError says what kind of directory was expected."""
    path = run_dir / "report.json"
    if not path.exists():
        raise RunDirError(f"{run_dir}: holds no report.json; expected the directory of a run, which `ranksight run --dir` names")
    return read_json(path)
