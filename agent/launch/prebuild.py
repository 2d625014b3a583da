"""Compile the native tap before the ranks start, where the Python that they will run can be told from the command.

    launcher command -> its interpreter -> `native_build.library()` in that interpreter, once for each

The interpreter may live in another environment than ours; the hooks reach it through PYTHONPATH as they reach the ranks.
Whatever goes wrong here is left to the ranks, which compile under a lock or fall back to the Python tap.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ranksight.hooks import ring
from ranksight.hooks.native_build import BUILD_TIMEOUT_SECONDS, SOURCES, cache_directory

_CODE = """
try:
    from ranksight.hooks import native_build
    print(native_build.library())
except Exception:  # no torch there, or no compiler: the ranks say so where it matters
    raise SystemExit(1)
"""


def interpreter(command: Sequence[str]) -> str | None:
    """The Python that `command` starts: itself, or the one that its script names; None when neither is seen."""
    found = shutil.which(command[0])
    if found is None:
        return None
    if Path(found).name.startswith("python"):
        return found
    try:
        with Path(found).open("rb") as script:
            first = script.readline(512)
    except OSError:
        return None
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    return shutil.which(words[0]) if words and Path(words[0]).name.startswith("python") else None


def native_tap(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Have the library of the launcher's Python ready, with one line on stderr while it is compiled."""
    python = interpreter(command)
    if python is None:
        return
    stamp = _stamp(Path(python), environ)
    try:
        if stamp.exists() and Path(stamp.read_text().strip()).exists():
            return
        quiet = {name: value for name, value in environ.items() if name != ring.ENV_RING_DIR}
        done = subprocess.run(
            [python, "-c", _CODE], env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            timeout=BUILD_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            stamp.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stamp.write_bytes(done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        return


def _stamp(python: Path, environ: Mapping[str, str]) -> Path:
    """A file that says where the library of this interpreter is; another one when the sources or packages change."""
    site = python.parent.parent / "lib"
    about = [str(python), *(f"{path.name}{path.stat().st_mtime_ns}" for path in sorted(SOURCES.iterdir()))]
    about += [str(folder.stat().st_mtime_ns) for folder in sorted(site.glob("python3*/site-packages"))]
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    return cache_directory(environ) / "interpreters" / key
