"""Reading an archive back: the operations and events of some steps, over all files of all hosts.

    archive = open_archive(run_dir)
    archive.collectives(step=12)  -> pyarrow.Table of schema.COLLECTIVES
    archive.events(step=12)       -> pyarrow.Table of schema.EVENTS
    archive.clocks().corrected(table)  its times on one clock, when several hosts wrote it

Only files and row groups that can hold the step are read. A file that is no longer whole is an error that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ranksight.agent.archive.clocks import COLUMNS, Clocks, measured
from ranksight.agent.archive.part import FOLDER
from ranksight.agent.archive.schema import SCHEMAS, VERSION
from ranksight.agent.archive.store import NAME
from ranksight.agent.collectives.clock import SYNCHRONISING_OPS
from ranksight.agent.errors import RunDirError


@dataclass(frozen=True, slots=True)
class Archive:
    """The files of one run. `wall_offset_ns` of each host turns its times into those since 1970."""

    run_id: str
    wall_offset_ns: dict[str, int]
    _files: dict[str, tuple[str, ...]]

    def collectives(self, step: int | None = None) -> pa.Table:
        """Operations of one step or of the whole run, of all ranks."""
        return self._table("collectives", step)

    def events(self, step: int | None = None) -> pa.Table:
        """Events of one step or of the whole run, of all ranks."""
        return self._table("events", step)

    def clocks(self) -> Clocks:
        """The clocks of the hosts against each other, measured over the whole run."""
        one = len(self.wall_offset_ns) < 2
        wanted = ds.field("op").isin(sorted(SYNCHRONISING_OPS))
        table = SCHEMAS["collectives"].empty_table() if one else self._dataset("collectives").to_table(list(COLUMNS), wanted)
        return measured(table, self.wall_offset_ns)

    def steps(self) -> tuple[int, int] | None:
        """First and last step of which there is a finished span; None when there is none."""
        found = self._dataset("events").to_table(["step"], filter=(ds.field("kind") == "step") & (ds.field("step") >= 0))
        steps = found.column("step").to_pylist()
        return (min(steps), max(steps)) if steps else None

    def _table(self, kind: str, step: int | None) -> pa.Table:
        chosen = None if step is None else ds.field("step") == step
        return self._dataset(kind).to_table(filter=chosen)

    def _dataset(self, kind: str) -> Any:
        return ds.dataset(list(self._files.get(kind, ())), schema=SCHEMAS[kind], format="parquet")


def open_archive(run_dir: Path) -> Archive:
    """The archive of a run directory; RunDirError when there is none, or when a file of it can't be read."""
    folder = run_dir / FOLDER
    paths = sorted(path for path in folder.iterdir() if NAME.match(path.name)) if folder.is_dir() else []
    if not paths:
        raise RunDirError(f"{folder}: no archive here; `ranksight run --dir {run_dir}` writes one while the job runs")
    by_kind: dict[str, list[str]] = {}
    offsets: dict[str, int] = {}
    run_id = ""
    for path in paths:
        said = _metadata(path)
        run_id = said["ranksight.run_id"]
        offsets[said["ranksight.host"]] = int(said["ranksight.wall_offset_ns"])
        by_kind.setdefault(path.name.partition("-")[0], []).append(str(path))
    return Archive(run_id, offsets, {kind: tuple(names) for kind, names in by_kind.items()})


def _metadata(path: Path) -> dict[str, str]:
    try:
        raw = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise RunDirError(f"{path}: not a Parquet file: {error}") from error
    said = {key.decode(): value.decode() for key, value in raw.items() if key.startswith(b"ranksight.")}
    if said.get("ranksight.version") != str(VERSION):
        raise RunDirError(f"{path}: archive version {said.get('ranksight.version')}, this reads {VERSION}")
    return said


