"""run.json: what was run, where, and with which software, so that a report can be understood months later."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

# Values that follow such a word in a command line are not written down.
_SECRET = re.compile(r"(token|secret|passw|api[-_]?key|credential)", re.IGNORECASE)
_HIDDEN = "<redacted>"


def describe(run_id: str, command: Sequence[str]) -> dict[str, Any]:
    """Identity and environment of a run that is about to start."""
    return {
        "schema": 1,
        "run_id": run_id,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": redacted(command),
        "directory": str(Path.cwd()),
        "ranksight": metadata.version("ranksight"),
        "environment": {
            "host": platform.node(),
            "platform": platform.platform(),
            "python": sys.version.split()[0],
            "cpus": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def redacted(command: Sequence[str]) -> list[str]:
    """The command line without secrets: `--token X` and `--token=X` keep their names only."""
    shown: list[str] = []
    hide = False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            shown.append(_HIDDEN)
            hide = False
            continue
        hide = bool(_SECRET.search(name)) and not equals and word.startswith("-")
        shown.append(f"{name}={_HIDDEN}" if equals and _SECRET.search(name) else word)
    return shown
