"""What lies on disk of the checkpoints that a run has written, and whether it can be trusted.

    paths of CHECKPOINT events -> candidates -> examine(path) -> Checkpoint(step, state, why, facts)

Three formats are known by what they leave:

    step-00000040/manifest.json + COMPLETE    sizes and SHA-256 of every file (the reference trainer; docs/recovery.md)
    40/.metadata                              torch.distributed.checkpoint: whole once this file is there, no digests
    model.pt                                  one file of the size that was written, no digests

Nothing here loads a tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

MANIFEST, MARKER, DCP_MARKER = "manifest.json", "COMPLETE", ".metadata"


class State(StrEnum):
    """How far a checkpoint can be trusted."""

    SOUND = "sound"  # whole, and every byte is what was written
    WHOLE = "whole"  # whole by names and sizes; the bytes were not, or can't be, compared
    INCOMPLETE = "incomplete"  # something is missing
    DAMAGED = "damaged"  # bytes differ from the digests


@dataclass(frozen=True, slots=True)
class Written:
    """What the events of the ranks say of one path: steps done, CLOCK_MONOTONIC begin and end, size (None: a folder)."""

    path: Path
    step: int
    begin_ns: int
    end_ns: int
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint. `step` is the number of steps done in it; None when nothing says so. `why` explains its state."""

    path: Path
    step: int | None
    state: State
    why: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # the manifest without its files

    @property
    def usable(self) -> bool:
        """Whether a run may go on from it as far as the disk can tell."""
        return self.step is not None and self.state in {State.SOUND, State.WHOLE}


def candidates(written: Iterable[Written]) -> dict[Path, Written | None]:
    """Checkpoints on disk: what events name, and what lies beside it. A folder that was renamed is found that way."""
    by_path = {item.path: item for item in written}
    found: dict[Path, Written | None] = {path: item for path, item in by_path.items() if path.exists()}
    for folder in {path.parent for path in by_path}:
        for beside in _folders(folder):
            if (beside / MANIFEST).exists() or (beside / MARKER).exists():
                found.setdefault(beside, None)
    return found


def examine(path: Path, written: Written | None = None, *, digests: bool) -> Checkpoint:
    """State of one checkpoint; `digests`: compare every byte, which takes as long as reading it."""
    step = written.step if written else None
    try:
        if (path / MANIFEST).exists() or (path / MARKER).exists():
            return _with_manifest(path, digests)
        if path.is_dir():
            if (path / DCP_MARKER).exists():
                return Checkpoint(path, step, State.WHOLE, "its format has no digests")
            return Checkpoint(path, step, State.INCOMPLETE, f"{DCP_MARKER} is missing")
        size = path.stat().st_size
        if written is None or written.size is None or size == written.size:
            return Checkpoint(path, step, State.WHOLE, "its format has no digests")
        return Checkpoint(path, step, State.INCOMPLETE, f"it has {size} bytes, {written.size} were written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Checkpoint(path, step, State.INCOMPLETE, f"it can't be read: {type(error).__name__}: {error}")


def size_of(path: Path) -> int:
    """Bytes that `examine` with digests has to read; 0 when it can't be told."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        return sum(int(entry["bytes"]) for entry in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _with_manifest(path: Path, digests: bool) -> Checkpoint:
    content = (path / MANIFEST).read_bytes()
    manifest = json.loads(content)
    files = manifest["files"]
    step = int(manifest["step"])
    facts = {key: value for key, value in manifest.items() if key != "files"}
    if not (path / MARKER).exists():
        return Checkpoint(path, step, State.INCOMPLETE, f"{MARKER} is missing", facts)
    if (path / MARKER).read_text().strip() != hashlib.sha256(content).hexdigest():
        return Checkpoint(path, step, State.DAMAGED, f"{MANIFEST} is not the one that {MARKER} was made for", facts)
    for name, entry in files.items():
        if not (path / name).exists():
            return Checkpoint(path, step, State.INCOMPLETE, f"{name} is missing", facts)
        if (size := (path / name).stat().st_size) != entry["bytes"]:
            return Checkpoint(path, step, State.DAMAGED, f"{name} has {size} bytes instead of {entry['bytes']}", facts)
    if not digests:
        return Checkpoint(path, step, State.WHOLE, "its bytes were not compared with the digests", facts)
    if differing := [name for name, entry in files.items() if _digest(path / name) != entry["sha256"]]:
        return Checkpoint(path, step, State.DAMAGED, f"{', '.join(differing)} differ from the manifest", facts)
    return Checkpoint(path, step, State.SOUND, "", facts)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []
