"""What is left to see of a job before its processes are ended, in bounded time.

    ranks (pid, ring) -> Evidence.start -> evidence/rank3/{stack.txt, proc.json, log.txt, ring}   suspects first
                      -> done when all is there or the time is up

Stacks are taken from outside with py-spy, all ranks at once; a rank that is stopped is read without pausing it. Log
lines come from the files that a rank's stdout and stderr go to, where they are files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC_FILES = ("status", "wchan", "stack", "syscall", "io", "cmdline")
LOG_BYTES = 64 << 10
MOST_RANKS = 16  # stacks of more would take longer than the time there is
MOST_RING_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank to look at; `state` is the letter of /proc, None when it is gone."""

    rank: int
    pid: int
    ring: Path
    state: str | None


class Evidence:
    """Collected by a thread of its own; `done` at the latest `seconds` after the start."""

    def __init__(self, folder: Path, suspects: Sequence[Suspect], seconds: float, proc: Path = Path("/proc")) -> None:
        self.folder, self._proc = folder, proc
        self._suspects = list(suspects)[:MOST_RANKS]
        self._deadline = time.monotonic() + seconds
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether there is no more to wait for."""
        return not self._thread.is_alive() or time.monotonic() >= self._deadline

    def _collect(self) -> None:
        dumps = {suspect.rank: self._dump(suspect) for suspect in self._suspects if suspect.state is not None}
        copied = 0
        for suspect in self._suspects:
            folder = self.folder / f"rank{suspect.rank}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "proc.json").write_text(json.dumps(self._facts(suspect), indent=1))
                (folder / "log.txt").write_bytes(self._last_lines(suspect.pid))
                copied += suspect.ring.stat().st_size
                if copied <= MOST_RING_BYTES:
                    shutil.copyfile(suspect.ring, folder / suspect.ring.name)
            except OSError as error:
                _note(folder, f"{type(error).__name__}: {error}")
        for rank, dump in dumps.items():
            self._finish(rank, dump)

    def _dump(self, suspect: Suspect) -> subprocess.Popen[bytes] | None:
        program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
        if program is None:
            return None
        how = ["--nonblocking"] if suspect.state in {"T", "t"} else []
        return subprocess.Popen(
            [program, "dump", "--pid", str(suspect.pid), *how], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _finish(self, rank: int, dump: subprocess.Popen[bytes] | None) -> None:
        folder = self.folder / f"rank{rank}"
        if dump is None:
            _note(folder, "no stack: there is no py-spy beside this Python")
            return
        try:
            text, _ = dump.communicate(timeout=max(0.1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            dump.kill()
            text, _ = dump.communicate()
            text += b"\nno answer in the time there was\n"
        (folder / "stack.txt").write_bytes(text)

    def _facts(self, suspect: Suspect) -> dict[str, str]:
        facts = {"pid": str(suspect.pid), "state": suspect.state or "gone"}
        for name in PROC_FILES:
            try:
                text = (self._proc / str(suspect.pid) / name).read_bytes().replace(b"\0", b" ")
                facts[name] = text.decode(errors="replace")
            except OSError as error:
                facts[name] = f"({error.strerror})"
        return facts

    def _last_lines(self, pid: int) -> bytes:
        seen: set[Path] = set()
        text = b""
        for number in (1, 2):
            try:
                path = (self._proc / str(pid) / "fd" / str(number)).resolve()
                if path in seen or not path.is_file():
                    continue
                seen.add(path)
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - LOG_BYTES))
                    text += file.read(LOG_BYTES)
            except OSError:
                continue
        return text


def _note(folder: Path, text: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "missing.txt").open("a") as file:
            file.write(text + "\n")
    except OSError:
        return
