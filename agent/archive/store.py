"""The files of one host's archive: numbered, whole or not there, together below a size. Written by a thread of its own.

    Store.put(kind, table) -> queue -> thread: Parquet in memory -> write beside, fsync, rename -> the oldest files go

A disk that hangs or is full costs records, which are counted, and never the agent's next look at the ranks.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ranksight.agent import files
from ranksight.agent.errors import RunDirError

log = logging.getLogger(__name__)

MAX_FILES = 20_000  # of a slow job: a folder with more is a burden on any file system
WAITING = 8  # tables that may wait for a slow disk
NAME = re.compile(r"^(collectives|events)-(.+)-(\d{6,})\.parquet$")


@dataclass(frozen=True, slots=True)
class Held:
    """What the archive of this host holds; `dropped` counts rows removed to make room, or never written."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    dropped: int = 0


class Store:
    """Appends to `folder`, which is made when there is something to write; goes on where an earlier agent ended."""

    def __init__(self, folder: Path, host: str, max_bytes: int, metadata: dict[str, str]) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._host = re.sub(r"[^\w.-]", "_", host)
        self._metadata = metadata
        self._queue: queue.Queue[tuple[str, pa.Table] | None] = queue.Queue(WAITING)
        self._known: list[tuple[int, Path, int, int]] = []  # number, path, bytes, rows; oldest first
        self._next = 0
        self._lock = threading.Lock()
        self._held = Held()
        self._thread = threading.Thread(target=self._work, name="ranksight-archive", daemon=True)
        self._thread.start()

    @property
    def held(self) -> Held:
        """What is on disk now."""
        with self._lock:
            return self._held

    def put(self, kind: str, table: pa.Table) -> None:
        """Have a table written; never waits. When the disk is too far behind, its rows are dropped and counted."""
        try:
            self._queue.put_nowait((kind, table))
        except queue.Full:
            self._drop(table.num_rows)

    def close(self, seconds: float) -> bool:
        """Write what is waiting, for so long at most; False when the disk did not take it in time."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        self._find()
        while (item := self._queue.get()) is not None:
            kind, table = item
            try:
                self._write(kind, table)
            except (RunDirError, OSError, pa.ArrowException):
                log.exception("%d rows of the archive were not written", table.num_rows)
                self._drop(table.num_rows)

    def _find(self) -> None:
        """Take over the files of this host that are there, and remove what an agent that was killed left half done."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            match = NAME.match(path.name.lstrip(".").partition(".parquet")[0] + ".parquet")
            if match is None or match[2] != self._host:
                continue
            if path.name.startswith("."):
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError, pa.ArrowException):
                self._known.append((int(match[3]), path, path.stat().st_size, pq.read_metadata(path).num_rows))
        self._known.sort()
        self._next = self._known[-1][0] + 1 if self._known else 0
        self._say()

    def _write(self, kind: str, table: pa.Table) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{kind}-{self._host}-{self._next:06d}.parquet"
        sink = pa.BufferOutputStream()
        rising = [name for name in table.schema.names if name.endswith("_ns") or name == "seq"]
        with pq.ParquetWriter(
            sink,
            table.schema,
            compression="zstd",
            use_dictionary=[name for name in table.schema.names if name not in rising],
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),  # a third cheaper than trying dictionaries
            write_statistics=["step"],  # what readers look for
            store_schema=False,  # so that dictionaries are strings to every reader
        ) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(self._metadata)
        data = sink.getvalue()
        files.write_atomically(path, data)
        self._known.append((self._next, path, data.size, table.num_rows))
        self._next += 1
        while self._known[1:] and (sum(entry[2] for entry in self._known) > self._max_bytes or len(self._known) > MAX_FILES):
            _, oldest, _, rows = self._known.pop(0)
            oldest.unlink(missing_ok=True)
            self._drop(rows)
        self._say()

    def _say(self) -> None:
        size, rows = sum(entry[2] for entry in self._known), sum(entry[3] for entry in self._known)
        with self._lock:
            self._held = replace(self._held, files=len(self._known), bytes=size, rows=rows)

    def _drop(self, rows: int) -> None:
        with self._lock:
            self._held = replace(self._held, dropped=self._held.dropped + rows)
