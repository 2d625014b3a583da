"""`ranksight resume D`: check what a recovery plan promises, launch it, and see whether the same fault comes back.

    D/recovery.json -> check (digests, hosts, layout) -> launcher's command -> a run of its own in D/resumed-1
    its recovery.json -> the same kind at the same place?  -> exit code 76 and why

A fault that returns unchanged will return again: code 76 tells whatever restarts jobs not to try.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranksight.agent import files
from ranksight.agent.errors import RanksightError
from ranksight.agent.launch import run
from ranksight.agent.recovery.checkpoints import State, examine
from ranksight.agent.recovery.command import REDACTED
from ranksight.agent.recovery.names import EXPECTED_FILE, RECOVERY_FILE

_RESUMED = "resumed-"
_WORLD = re.compile(r"^--(nproc[-_]per[-_]node|nnodes)(?:=(\d+))?$")


class ResumeRefused(RanksightError):
    """A plan that must not be carried out as it is; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What will be run: the launcher's command, where its records go, and what its checkpoint says."""

    command: tuple[str, ...]
    run_dir: Path
    expected: dict[str, Any] | None


def prepare(
    run_dir: Path, command: Sequence[str], *, host: str = socket.gethostname(), another_layout: bool = False
) -> Resumption:
    """Check the plan of a run; `command` replaces the planned one when it is not empty.

    ResumeRefused when the checkpoint is not what the plan says any more, this host is to be left out, the layout of the
    job differs from that of the checkpoint, or there is nothing to run. RunDirError when there is no plan.
    """
    plan = files.read_json(run_dir / RECOVERY_FILE)
    words = tuple(command) or tuple(plan["command"])
    if not words:
        raise ResumeRefused(f"{run_dir}: the plan has no command; give it: ranksight resume {run_dir} -- torchrun ...")
    if any(REDACTED in word for word in words):
        raise ResumeRefused(f"{run_dir}: words of the command were left out as secrets; give it whole after --")
    if host in plan["excluded"]["hosts"] and len(plan["run"]["hosts"]) > 1:
        raise ResumeRefused(f"{run_dir}: the plan leaves out this host, {host}")
    good = plan["checkpoint"]
    if good is not None:
        _check_checkpoint(good)
        if not another_layout:
            _check_layout(good, plan["run"]["world_size"], words)
    expected = None if good is None else {"step": good["step"], "cursor": good["cursor"], "path": good["path"]}
    number = 1 + max((int(path.name.removeprefix(_RESUMED)) for path in run_dir.glob(f"{_RESUMED}[0-9]*")), default=0)
    return Resumption(words, run_dir / f"{_RESUMED}{number}", expected)


def resume(run_dir: Path, resumption: Resumption, options: Mapping[str, Any]) -> tuple[run.Outcome, str | None]:
    """Run it. The second value says which fault came back, None when none did; `options` are those of RunOptions."""
    resumption.run_dir.mkdir(parents=True)
    if resumption.expected is not None:
        files.write_json(resumption.run_dir / EXPECTED_FILE, resumption.expected)
    outcome = run.run(run.RunOptions(resumption.run_dir, resumption.command, **options))
    path = resumption.run_dir / RECOVERY_FILE
    if not path.exists():
        return outcome, None
    again = files.read_json(path)
    why = repeated(files.read_json(run_dir / RECOVERY_FILE), again)
    if why is not None:
        again["restart"] = {"sensible": False, "why": why}
        files.write_json(path, again)
    return outcome, why


def repeated(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """A sentence when the root cause of two plans is the same fault at the same place; None otherwise."""
    old, new = before["evidence"][0], after["evidence"][0]
    if old["kind"] != new["kind"]:
        return None
    place = _place(old)
    if place != _place(new):
        return None
    return f"{new['kind']} came back at the same place ({place}): another restart without a change would fail again"


def _place(evidence: Mapping[str, Any]) -> str:
    """Where a fault is: the line of code if it is known, else the step, else the ranks."""
    if evidence["call_site"]:
        return str(evidence["call_site"])
    if evidence["first_step"] is not None:
        return f"step {evidence['first_step']}"
    return f"ranks {', '.join(map(str, evidence['ranks']))}" if evidence["ranks"] else "the whole job"


def _check_checkpoint(good: Mapping[str, Any]) -> None:
    found = examine(Path(good["path"]), digests=True)
    if not Path(good["path"]).exists():
        raise ResumeRefused(f"{good['path']}: the checkpoint of the plan is gone")
    if found.state in {State.INCOMPLETE, State.DAMAGED}:
        raise ResumeRefused(f"{good['path']}: {found.why}")
    if found.step is not None and found.step != good["step"]:
        raise ResumeRefused(f"{good['path']}: holds {found.step} steps, the plan says {good['step']}")


def _check_layout(good: Mapping[str, Any], recorded: int | None, command: Sequence[str]) -> None:
    """The number of ranks that the launcher will start against that of the checkpoint, where both are known."""
    layout = good["layout"] or {}
    saved = math.prod(layout[axis] for axis in ("pp", "dp", "tp")) if {"pp", "dp", "tp"} <= layout.keys() else recorded
    ranks = ranks_of(command)
    if saved is not None and ranks is not None and ranks != saved:
        raise ResumeRefused(
            f"{good['path']}: was written by {saved} ranks, the command starts {ranks}; "
            "--another-layout says that the trainer can load it all the same"
        )


def ranks_of(command: Sequence[str]) -> int | None:
    """How many ranks torchrun will start; None when its words do not say a number."""
    counts: dict[str, int | None] = {}
    for at, word in enumerate(command):
        if match := _WORLD.match(word):
            value = match[2] or (command[at + 1] if at + 1 < len(command) else "")
            counts[match[1].replace("_", "-")] = int(value) if value.isdigit() else None
    per_node, nodes = counts.get("nproc-per-node"), counts.get("nnodes", 1)
    return None if per_node is None or nodes is None else per_node * nodes
