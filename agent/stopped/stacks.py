"""Where the suspects of a hang are in their Python code: their stacks, read from outside by py-spy.

    finding, pids of its ranks -> ask (py-spy, once, without pausing the process) -> parse -> Stack or what went wrong
                               -> explain: the finding with a sentence "Rank 2 is in load_batch (data.py:41)."

Only suspects are asked, and only when a finding about them is new. The stack is read without stopping the process, so
it may be torn while the process runs; of one that hangs it is exact.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ranksight.agent.findings import Finding
from ranksight.agent.words import ranks_in_words

KINDS = frozenset({"rank_not_joined", "rank_frozen", "collective_stuck", "deadlock", "data_exhausted"})
MAX_SUSPECTS = 4
ASK_SECONDS = 2.0  # for all suspects of a finding together
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/ranksight/hooks/", "<frozen")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call; `file` as Python knows it."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @property
    def is_users(self) -> bool:
        """Whether it is the job's own code, and not a library's."""
        return not any(part in self.file for part in _LIBRARIES)


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of a process, innermost call first."""

    frames: tuple[Frame, ...]

    @property
    def place(self) -> Frame | None:
        """The innermost call of the job's own code, else the innermost of all; None for a thread without Python."""
        return next((frame for frame in self.frames if frame.is_users), self.frames[0] if self.frames else None)


Asker = Callable[[Mapping[int, int]], Mapping[int, Stack | str]]
"""Ranks with their pids -> their stacks, or why there is none."""


def parse(text: str, pid: int) -> Stack:
    """The main thread in what `py-spy dump --json` printed; ValueError when it is not there."""
    threads: list[dict[str, Any]] = json.loads(text)
    for thread in threads:
        if thread["os_thread_id"] == pid or thread["thread_name"] == "MainThread":
            frames = (Frame(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"])
            return Stack(tuple(frames))
    raise ValueError("no main thread")


def ask(pids: Mapping[int, int]) -> dict[int, Stack | str]:
    """Ask py-spy about all processes at once; together they have ASK_SECONDS."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        return dict.fromkeys(pids, "py-spy is not installed")
    asked = {
        rank: subprocess.Popen(
            [program, "dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, pid in pids.items()
    }  # fmt: skip
    deadline = time.monotonic() + ASK_SECONDS
    return {rank: _answer(process, pids[rank], deadline) for rank, process in asked.items()}


def explain(finding: Finding, pids: Mapping[int, int], asker: Asker) -> Finding:
    """The finding with the stacks of its suspects, where there are any to ask."""
    suspects = {rank: pids[rank] for rank in finding.ranks[:MAX_SUSPECTS] if rank in pids}
    if finding.kind not in KINDS or not suspects:
        return finding
    answers = asker(suspects)
    places: dict[str, list[int]] = {}
    for rank, answer in answers.items():
        if isinstance(answer, Stack) and answer.place:
            places.setdefault(str(answer.place), []).append(rank)
    told = "".join(
        f" {ranks_in_words(ranks)} {'is' if len(ranks) == 1 else 'are'} in {place}." for place, ranks in places.items()
    )
    evidence = {
        str(rank): [str(frame) for frame in answer.frames] if isinstance(answer, Stack) else answer
        for rank, answer in answers.items()
    }
    return replace(finding, message=finding.message + told, evidence=finding.evidence | {"stacks": evidence})


def _answer(process: subprocess.Popen[str], pid: int, deadline: float) -> Stack | str:
    try:
        out, err = process.communicate(timeout=max(0.05, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"py-spy took longer than {ASK_SECONDS:g} s"
    if process.returncode:
        return f"py-spy: {err.strip().splitlines()[-1] if err.strip() else f'exit code {process.returncode}'}"
    try:
        return parse(out, pid)
    except (ValueError, KeyError, TypeError) as error:
        return f"py-spy: {error}"
