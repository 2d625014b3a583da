"""Keeps the records of the run: collects what the polls find and hands it to the store, a file's worth at a time.

    add -> rows of the rings, as they are -> roll: converted every `rotate_seconds` or MAX_ROWS -> Store

At the end the operations that never completed are kept too: after a hang they are what matters.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from ranksight.agent.archive.rows import Converter, Extras
from ranksight.agent.archive.schema import VERSION
from ranksight.agent.archive.store import Store
from ranksight.agent.parts import Part, Surroundings
from ranksight.agent.reading.slots import Rows

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

MAX_ROWS = 65_536  # in memory: 16 MB
CLOSE_SECONDS = 5.0
FOLDER = "archive"


class Archive(Part):
    """The archive of one host in `run_dir`, which must be given."""

    def __init__(self, surroundings: Surroundings) -> None:
        if surroundings.run_dir is None:
            raise ValueError("an archive needs a run directory")
        settings = surroundings.config.archive
        self._host = host = socket.gethostname()
        metadata = {
            "ranksight.version": str(VERSION),
            "ranksight.run_id": surroundings.run_id,
            "ranksight.host": host,
            "ranksight.wall_offset_ns": str(time.time_ns() - time.monotonic_ns()),
        }
        self._store = Store(surroundings.run_dir / FOLDER, host, settings.max_bytes, metadata)
        self._rotate_ns = int(settings.rotate_seconds * 1e9)
        self._converter: Converter | None = None
        self._collectives: list[tuple[Source, Rows]] = []
        self._events: list[tuple[Source, Rows, Extras]] = []
        self._rows = 0
        self._since_ns: int | None = None  # when the oldest record came that is not in the store

    def add(self, source: Source, batch: Batch) -> None:
        """See Part.add."""
        if len(batch.collectives):
            self._collectives.append((source, batch.collectives))
        if len(batch.events):
            self._events.append((source, batch.events, batch.event_extras))
        self._rows += len(batch.collectives) + len(batch.events)

    def roll(self, observer: Observer, now_ns: int) -> None:
        """See Part.roll."""
        if self._rows and self._since_ns is None:
            self._since_ns = now_ns
        if self._since_ns is not None and (now_ns - self._since_ns >= self._rotate_ns or self._rows >= MAX_ROWS):
            self._flush(observer)

    def sections(self, observer: Observer) -> dict[str, Any]:
        """See Part.sections."""
        held = self._store.held
        return {"archive": {"files": held.files, "bytes": held.bytes, "rows": held.rows, "dropped": held.dropped}}

    def close(self, observer: Observer, now_ns: int) -> None:
        """See Part.close."""
        for source in observer.sources.values():
            if source.rank >= 0 and len(source.reader.open_rows):
                self._collectives.append((source, source.reader.open_rows))
        self._flush(observer)
        self._store.close(CLOSE_SECONDS)

    def _flush(self, observer: Observer) -> None:
        converter = self._converter = self._converter or Converter(self._host, observer.registry)
        if self._collectives:
            self._store.put("collectives", converter.collectives(self._collectives))
        if self._events:
            self._store.put("events", converter.events(self._events))
        self._collectives, self._events, self._rows, self._since_ns = [], [], 0, None
