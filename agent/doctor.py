"""`ranksight doctor`: what works on this machine, what is missing, and what cannot be done without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ranksight.agent.errors import RanksightError
from ranksight.hooks.ring import Sizes, default_directory

_ASK_TORCH = """
import json, torch, torch.distributed as d
print(json.dumps([torch.__version__, d.is_available(), d.is_gloo_available(), d.is_nccl_available()]))
"""
_ASK_HEADERS = "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `without` says what is lost when it is not ok; `needed` that nothing works then."""

    name: str
    ok: bool
    found: str
    without: str = ""
    needed: bool = False


def examine(python: str, proc: Path = Path("/proc"), which: Callable[[str], str | None] = shutil.which) -> tuple[Check, ...]:
    """Look at everything. `python` is the interpreter that training runs in."""
    if which(python) is None:
        raise RanksightError(f"--python {python}: there is no such program")
    return (
        Check("python of the agent", sys.version_info >= (3, 11), sys.version.split()[0], "the agent needs 3.11", True),
        _torch(python),
        _compiler(which),
        _headers(python),
        _tmpfs(),
        Check("py-spy", which("py-spy") is not None or _beside("py-spy"), "", "no stacks of hanging ranks"),
        _ptrace(proc),
        Check("pressure stall information", (proc / "pressure/cpu").exists(), "", "host pressure is told by load alone"),
        *(
            Check(program, which(program) is not None, which(program) or "", without)
            for program, without in (
                ("prometheus", "metrics have nowhere to go on this host (another host's Prometheus will do)"),
                ("promtool", "rules can't be checked here"),
                ("prometheus-alertmanager", "alerts have nowhere to go on this host"),
                ("chromium", "pages can't be tested in a browser here"),
            )
        ),
    )


def usable(checks: tuple[Check, ...]) -> bool:
    """Whether jobs can be watched at all."""
    return all(check.ok for check in checks if check.needed)


def render(checks: tuple[Check, ...], console: Console) -> None:
    """A table: OK or missing, what was found, what is lost."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "check", "found", "without it"):
        table.add_column(name)
    for check in checks:
        mark = "[green]OK[/]" if check.ok else "[red]MISSING[/]" if check.needed else "[yellow]missing[/]"
        table.add_row(mark, check.name, check.found, "" if check.ok else check.without)
    console.print(table)


def to_json(checks: tuple[Check, ...]) -> str:
    """The checks as JSON."""
    return json.dumps({"usable": usable(checks), "checks": [asdict(check) for check in checks]}, indent=1) + "\n"


def _ask(python: str, code: str) -> str | None:
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _torch(python: str) -> Check:
    said = _ask(python, _ASK_TORCH)
    if said is None:
        return Check("torch of the jobs", False, f"not in {python}", "nothing to watch in this environment")
    version, distributed, gloo, nccl = json.loads(said)
    backends = ", ".join(name for name, there in (("gloo", gloo), ("nccl", nccl)) if there)
    return Check("torch of the jobs", bool(distributed), f"{version} ({backends})", "this torch has no torch.distributed")


def _compiler(which: Callable[[str], str | None]) -> Check:
    found = next((path for name in ("g++", "clang++", "c++") if (path := which(name))), None)
    return Check("C++ compiler", found is not None, found or "", "the Python tap, which costs more per call; install g++")


def _headers(python: str) -> Check:
    without = "the Python tap, which costs more per call; install python3-dev"
    return Check("Python headers of the jobs", _ask(python, _ASK_HEADERS) == "True", "", without)


def _tmpfs() -> Check:
    folder = default_directory("doctor").parent.parent
    free = shutil.disk_usage(folder).free
    per_rank = Sizes().total
    without = f"a ring takes {per_rank / 2**20:.0f} MiB a rank; smaller rings drop records in bursts"
    return Check("room for rings", free >= 8 * per_rank, f"{folder}: {free / 2**20:,.0f} MiB free", without)


def _ptrace(proc: Path) -> Check:
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    ok = scope == 0 or os.geteuid() == 0
    return Check("ptrace", ok, f"scope {scope}", "py-spy can't look into ranks; run the agent as root or set scope 0")


def _beside(program: str) -> bool:
    return (Path(sys.executable).parent / program).exists()
