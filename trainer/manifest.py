"""When a checkpoint folder may be trusted. Standard library only; the tensors are checkpoint.py's business.

    .draft-00000040/        ranks write their shards here
      + manifest.json       facts of the run, and size and SHA-256 of every file; all of it synced to disk
    step-00000040/          the draft, renamed
      + COMPLETE            SHA-256 of the manifest; its arrival, an atomic rename, is the moment of completion

A crash before the last rename leaves something that `is_complete` refuses, whatever of it reached the disk. Removal
goes the other way round, the marker first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

MANIFEST, MARKER = "manifest.json", "COMPLETE"
SCHEMA = 1


class CheckpointDamaged(RuntimeError):
    """A checkpoint is not what its manifest says, or not complete."""


def draft_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return folder / f".draft-{step:08d}"


def final_path(folder: Path, step: int) -> Path:
    """Where it is once it is whole."""
    return folder / f"step-{step:08d}"


def publish(draft: Path, final: Path, facts: dict[str, Any]) -> None:
    """Turn a fully written draft into a complete checkpoint. OSError leaves no complete one behind."""
    files = {}
    for path in sorted(p for p in draft.rglob("*") if p.is_file() and p.name != MANIFEST):
        files[path.relative_to(draft).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
        _sync(path)
    manifest = json.dumps({"schema": SCHEMA, **facts, "files": files}, indent=1).encode()
    _write(draft / MANIFEST, manifest)
    for directory in (draft, *(p for p in draft.rglob("*") if p.is_dir())):
        _sync(directory)
    remove(final)
    draft.rename(final)
    _sync(final.parent)
    marker = final / f".{MARKER}"
    _write(marker, hashlib.sha256(manifest).hexdigest().encode())
    marker.rename(final / MARKER)
    _sync(final)


def is_complete(path: Path) -> bool:
    """Whether the marker is there, belongs to the manifest, and every file has its size."""
    try:
        manifest = (path / MANIFEST).read_bytes()
        if (path / MARKER).read_text() != hashlib.sha256(manifest).hexdigest():
            return False
        files = json.loads(manifest)["files"]
        return all((path / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, ValueError, KeyError):
        return False


def complete(folder: Path) -> list[Path]:
    """Complete checkpoints of a folder, newest first; empty when there is no folder."""
    return [path for path in sorted(folder.glob("step-*"), reverse=True) if is_complete(path)]


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a complete checkpoint. CheckpointDamaged names the files whose bytes differ from it."""
    if not is_complete(path):
        raise CheckpointDamaged(f"{path} is no complete checkpoint")
    manifest: dict[str, Any] = json.loads((path / MANIFEST).read_bytes())
    if damaged := [name for name, entry in manifest["files"].items() if _digest(path / name) != entry["sha256"]]:
        raise CheckpointDamaged(f"{path}: {', '.join(damaged)} differ from the manifest")
    return manifest


def retain(folder: Path, keep: int, clean_steps: int | None = None) -> None:
    """Keep the newest `keep` complete checkpoints; remove older ones, complete or not.

    With `clean_steps`, checkpoints of more steps are tainted: the newest complete one that is not stays, however old.
    """
    whole = complete(folder)
    kept = whole[:keep]
    if clean_steps is not None:
        kept += [path for path in whole if path <= final_path(folder, clean_steps)][:1]
    if len(kept) >= keep:
        for path in sorted(folder.glob("step-*")):
            if path < whole[keep - 1] and path not in kept:
                remove(path)


def discard_drafts(folder: Path) -> None:
    """Remove what a crashed writer left."""
    for path in folder.glob(".draft-*"):
        shutil.rmtree(path)


def remove(path: Path) -> None:
    """Remove a checkpoint so that half of it never looks complete."""
    if path.exists():
        (path / MARKER).unlink(missing_ok=True)
        _sync(path)
        shutil.rmtree(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
