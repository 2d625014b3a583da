"""Counts of the operations that gloo itself starts, by name; made in C++, independent of the tap."""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path

from ranksight.hooks import native_build


class BackendCount:
    """Counts from now on; compiled at the first use on a machine."""

    def __init__(self) -> None:
        path = native_build.library(Path(__file__).parent, "the counter of the tests")
        self._library = ctypes.PyDLL(str(path))
        self._library.count_start()

    def read(self) -> Counter[str]:
        """Operations started so far, by gloo's name without the prefix."""
        text = ctypes.create_string_buffer(1 << 16)
        self._library.count_read(text, ctypes.c_size_t(len(text)))
        lines = [line.rpartition(" ") for line in text.value.decode().splitlines()]
        return Counter({name: int(count) for name, _, count in lines})
