"""What every test may use: the checkout's folder, free ports, and programs that come from Debian packages.

A test that needs a program says so with its name, `@pytest.mark.system("prometheus")`. Without the program it fails
in CI (where set-up must have installed it) and is skipped elsewhere, with the reason.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [
        program for mark in item.iter_markers("system") for program in mark.args if shutil.which(program) is None
    ]
    if not missing:
        return
    reason = f"{', '.join(missing)} not found; `make setup` installs or lists what is missing"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that gives a loopback port nobody listens on, another one at every call."""
    held: set[int] = set()

    def pick() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in held:
                held.add(port)
                return port

    return pick
