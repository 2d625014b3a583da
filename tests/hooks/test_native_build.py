"""When the native tap cannot be built, the reason says what is missing; what was built once is used again."""

from __future__ import annotations

import os
import stat
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ranksight.hooks import native_build


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def environment(cache: Path, cxx: str) -> dict[str, str]:
    return {"RANKSIGHT_CACHE_DIR": str(cache), "CXX": cxx, "PATH": os.environ["PATH"]}


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(native_build.Unavailable, match=r"no C\+\+ compiler \(g\+\+, clang\+\+, c\+\+\); install g\+\+"):
        native_build.library(environ={"RANKSIGHT_CACHE_DIR": str(tmp_path), "PATH": str(tmp_path)})


def test_no_python_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sysconfig.get_paths() | {"include": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    with pytest.raises(native_build.Unavailable, match="install python3-dev"):
        native_build.library(environ=environment(tmp_path, compiler(tmp_path, "exit 1")))


def test_failed_build_is_not_tried_by_every_rank(tmp_path: Path) -> None:
    cxx = compiler(tmp_path, f"echo run >> {tmp_path}/runs; echo 'tap.cpp:1: error: no such thing' >&2; exit 1")
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(native_build.Unavailable, match="error: no such thing"):
            native_build.library(environ=environment(tmp_path / "cache", cxx), say=said.append)
    assert (tmp_path / "runs").read_text() == "run\n"
    assert len(said) == 1


def test_built_once_and_moved_into_place(tmp_path: Path) -> None:
    cxx = compiler(tmp_path, f"ls >> {tmp_path}/runs; echo built > library.so")
    said: list[str] = []
    first = native_build.library(environ=environment(tmp_path / "cache", cxx), say=said.append)
    second = native_build.library(environ=environment(tmp_path / "cache", cxx), say=said.append)
    assert first == second
    assert first.read_text() == "built\n"
    assert {"tap.cpp", "wire.h", "slot_ring.h"} <= set((tmp_path / "runs").read_text().split())
    assert len(said) == 1
    assert sorted(path.name for path in first.parent.iterdir()) == ["library.so", "lock"]


def test_cache_folder_without_a_usable_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = native_build.cache_directory({"HOME": "/proc/nowhere"})
    assert folder == tmp_path / f"ranksight-cache-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
