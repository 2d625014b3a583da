"""Which processes are ranks. Launchers, data workers and compile workers import torch too and must not look like one.

    torch_imported     RANK is set, this is no launcher and no child of a rank -> attach now
                       else -> attach when this process makes its first process group
    child of a rank    an attached rank leaves its pid in RANKSIGHT_RANK_PID, which its children inherit
    after fork         the child lets go of the parent's ring without touching it (`Attachment.abandon`)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Any

from ranksight.hooks.imports import after_import

ENV_RANK_PID = "RANKSIGHT_RANK_PID"
LAUNCHERS = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher",
        "accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
        "deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch", "ranksight", "ranksight.agent",
    }
)  # fmt: skip


def torch_imported(_torch: ModuleType) -> None:
    """Attach if this is a rank already, and be ready for the moment when it becomes one."""
    if is_rank(os.environ, sys.orig_argv, os.getpid()):
        from ranksight.hooks import attachment

        attachment.attach()
    await_process_group()


def await_process_group() -> None:
    """Attach when this process makes a process group."""
    after_import("torch.distributed.distributed_c10d", _await_process_group)


def is_rank(environ: Mapping[str, str], argv: Sequence[str], pid: int) -> bool:
    """Whether a process with this environment and command line (interpreter included) is a rank from its start."""
    parent = environ.get(ENV_RANK_PID)
    return environ.get("RANK", "").isdigit() and program(argv) not in LAUNCHERS and parent in {None, str(pid)}


def program(argv: Sequence[str]) -> str:
    """Module after `-m`, or the file name of the script, in a Python command line; "" when there is none."""
    rest = iter(argv[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if word in {"-W", "-X"}:
            next(rest, "")
        elif word == "-c":
            return ""
        elif not word.startswith("-"):
            return PurePath(word).name
    return ""


def _await_process_group(c10d: Any) -> None:
    """Attach before the first process group of this process is made, whoever makes it.

    The one function that they all go through is private; without it, ranks that do not have RANK in their environment
    call `ranksight.hooks.attach` themselves.
    """
    make_group = getattr(c10d, "_new_process_group_helper", None)
    if make_group is None:
        return

    def attach_first(*args: Any, **kwargs: Any) -> Any:
        mine = c10d._new_process_group_helper is attach_first
        if mine:
            c10d._new_process_group_helper = make_group
        from ranksight.hooks import attachment

        attachment.attach()
        return (c10d._new_process_group_helper if mine else make_group)(*args, **kwargs)

    c10d._new_process_group_helper = attach_first
