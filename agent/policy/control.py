"""The control block of one rank, from the agent's side: the only bytes of a ring that the agent writes.

ring file -> ControlBlock(path) -> block["step"], block["stop_after_step"] = 41
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ranksight.hooks import wire

_FIELDS = {field.name: field for field in wire.HEADER.fields}


class ControlBlock:
    """The header page of a ring, mapped for writing. OSError when the file is gone or is too short."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._page = mmap.mmap(fd, wire.HEADER_BYTES)
        except ValueError as error:
            raise OSError(f"{path}: {error}") from error
        finally:
            os.close(fd)

    def __getitem__(self, name: str) -> int:
        """A header field by its name in `wire.HEADER`."""
        field = _FIELDS[name]
        value: int = field.packer.unpack_from(self._page, field.offset)[0]
        return value

    def __setitem__(self, name: str, value: int) -> None:
        """Store a field of the control block; the rank owns all others."""
        field = _FIELDS[name]
        assert field.writer == "agent", name
        field.packer.pack_into(self._page, field.offset, value)

    def close(self) -> None:
        """Let go of the file."""
        self._page.close()
