"""The network of a rank, by what Linux lets a process do to its own sockets.

    pace   SO_MAX_PACING_RATE: the kernel spreads what is sent over time
    cut    each descriptor is exchanged for one that leads nowhere; the connection stays open, and its bytes are read
           and forgotten, so that neither side sees an error
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from ranksight.trainer.faults.scene import Scene

SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; the module socket has no name for it


def _connections() -> Iterator[socket.socket]:
    """The TCP connections of this process, each as a socket that must be detached before it is dropped."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            continue  # a file, or closed in between
        try:
            if found.family in {socket.AF_INET, socket.AF_INET6} and found.type == socket.SOCK_STREAM:
                found.getpeername()
                yield found
        except OSError:
            pass  # it listens
        finally:
            found.detach()


def pace(scene: Scene) -> None:
    """In every step: connections are made when they are first used."""
    for connection in _connections():
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, max(1, int(scene.size)))


def cut(scene: Scene) -> None:
    """Lose what comes and goes from now on."""
    for connection in _connections():
        kept = connection.dup()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        os.dup2(ours.fileno(), connection.fileno())
        ours.close()
        kept.setblocking(True)
        for end in (kept, theirs):
            scene.kept.append(end)
            threading.Thread(target=_forget, args=(end,), daemon=True).start()


def _forget(end: socket.socket) -> None:
    while end.recv(1 << 16):
        pass
