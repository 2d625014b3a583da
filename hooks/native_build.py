"""Compile the native tap, once for each torch, Python and compiler on a machine.

    sources + wire.c_header() + traits.c_header() + versions --sha256--> key
    <cache>/<key>/library.so there?  -> use it
    another rank is compiling it?    -> wait for its lock
    else                             -> compile into a draft, rename into place

A failed build leaves `failed.txt` beside the lock for ten minutes, so that not every rank tries again.
Raises `Unavailable` with a reason that says what is missing; it never raises anything else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ranksight.hooks import traits, wire

SOURCES = Path(__file__).with_name("native")
ENV_CACHE_DIR = "RANKSIGHT_CACHE_DIR"
BUILD_TIMEOUT_SECONDS = 600.0
FAILURE_HOLDS_SECONDS = 600.0


class Unavailable(Exception):
    """There is no native tap here; the text says why and what would help."""


def library(
    sources: Path = SOURCES,
    what: str = "the native tap",
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], object] = lambda text: print(text, file=sys.stderr),
) -> Path:
    """Path of the library for the torch and the Python that run, compiled now when it is not there yet.

    `sources` is a folder with one .cpp file and its headers; `what` names the product for people.
    """
    try:
        import torch

        command, texts = _recipe(sources, Path(torch.__file__).parent, torch.compiled_with_cxx11_abi(), environ)
        versions = "\n".join([torch.__version__, sys.version, platform.machine(), *command])
        key = hashlib.sha256("\0".join([versions, *texts.values()]).encode()).hexdigest()[:20]
        folder = cache_directory(environ) / key
        product = folder / "library.so"
        if not product.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(folder / "lock"):
                if not product.exists():
                    _raise_recent_failure(folder)
                    say(f"ranksight: compiling {what} for torch {torch.__version__} (once, about half a minute)")
                    _compile(command, texts, folder, product)
    except OSError as error:
        raise Unavailable(f"cannot build {what}: {error}") from error
    return product


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where compiled taps live: RANKSIGHT_CACHE_DIR, the user's cache, or a private folder in /tmp when HOME is not usable."""
    if environ.get(ENV_CACHE_DIR):
        return Path(environ[ENV_CACHE_DIR])
    base = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/nonexistent")) / ".cache")
    folder = base / "ranksight"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    private = Path(tempfile.gettempdir()) / f"ranksight-cache-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.stat().st_uid != os.getuid():
        raise OSError(f"{private} belongs to another user; set {ENV_CACHE_DIR}")
    return private


def _recipe(
    sources: Path, torch_folder: Path, cxx11_abi: bool, environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The compiler command without input and output, and the texts to compile."""
    candidates = [environ["CXX"]] if environ.get("CXX") else ["g++", "clang++", "c++"]
    compiler = next((path for name in candidates if (path := shutil.which(name, path=environ.get("PATH")))), None)
    if compiler is None:
        raise Unavailable(f"no C++ compiler ({', '.join(candidates)}); install g++")
    python_include = Path(sysconfig.get_paths()["include"])
    if not (python_include / "Python.h").exists():
        raise Unavailable(f"no Python headers in {python_include}; install python3-dev")
    torch_include = torch_folder / "include"
    if not (torch_include / "torch" / "library.h").exists():
        raise Unavailable(f"no torch headers in {torch_include}")
    texts = {path.name: path.read_text() for path in sorted(sources.iterdir()) if path.suffix in {".h", ".cpp"}}
    texts["wire.h"] = wire.c_header() + traits.c_header()
    command = [
        compiler, "-std=c++20", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}",
        "-isystem", str(torch_include), "-isystem", str(torch_include / "torch" / "csrc" / "api" / "include"),
        "-isystem", str(python_include),
        f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_folder / 'lib'}",
    ]  # fmt: skip
    return command, texts


def _compile(command: list[str], texts: Mapping[str, str], folder: Path, product: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        for name, text in texts.items():
            (Path(draft) / name).write_text(text)
        # Libraries come after the source that needs them.
        compiler, *options = command
        full = [compiler, *(name for name in texts if name.endswith(".cpp")), "-I.", *options, "-o", "library.so"]
        try:
            done = subprocess.run(
                full, check=False, cwd=draft, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=BUILD_TIMEOUT_SECONDS,
            )  # fmt: skip
            problem = done.stderr[-2000:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"no result after {BUILD_TIMEOUT_SECONDS:.0f} s"
        if problem:
            (folder / "failed.txt").write_text(problem)
            raise Unavailable(f"the compiler failed (see {folder / 'failed.txt'}): {_first_error(problem)}")
        (Path(draft) / "library.so").replace(product)


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or [""]
    return lines[0][:300]


def _raise_recent_failure(folder: Path) -> None:
    failed = folder / "failed.txt"
    if failed.exists() and time.time() - failed.stat().st_mtime < FAILURE_HOLDS_SECONDS:
        raise Unavailable(f"the compiler failed a moment ago (see {failed}): {_first_error(failed.read_text())}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclusive lock; without one (some network file systems) two ranks compile the same and the rename settles it."""
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
