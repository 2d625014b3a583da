"""A headless Chromium for tests, spoken to by the DevTools protocol over a pipe.

    with chromium(tmp_path) as browser:
        browser.open("http://127.0.0.1:9474/")
        browser.await_true("document.title != ''")
        browser.evaluate("[...document.querySelectorAll('data')].map(item => item.value)")
        browser.complaints        # console errors, uncaught exceptions, violations of the page's policy

Commands go to Chromium's descriptor 3 and answers come from its 4, as JSON that ends with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
WAIT_SECONDS = 60.0


class Browser:
    """One page of one browser."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers = commands, answers
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.bytes_received = 0  # as they came over the network, compressed
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """One command and its result; what else is said meanwhile is taken in."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            said = self._read()
            if said.get("id") == self._number:
                assert "error" not in said, (method, said["error"])
                return said["result"]
            self._hear(said)

    def open(self, url: str) -> None:
        """Go to a page and wait until it and its scripts are there."""
        result = self.ask("Page.navigate", url=url)
        assert "errorText" not in result, result["errorText"]
        self.await_true("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def await_true(self, script: str) -> None:
        """Return once an expression holds in the page."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.evaluate(script):
            assert time.monotonic() < deadline, (script, self.complaints)
            time.sleep(0.05)

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Set the window's size and the reader's colour scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def press(self, key: str) -> None:
        """One key, as a user would."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def picture(self, path: Path) -> None:
        """What is to be seen now, as PNG."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            raw += byte
        said: dict[str, Any] = json.loads(raw)
        return said

    def _hear(self, said: dict[str, Any]) -> None:
        method, parameters = said.get("method"), said.get("params", {})
        if method == "Log.entryAdded" and parameters["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "warning"}:
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Network.loadingFinished":
            self.bytes_received += int(parameters["encodedDataLength"])


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`; it is gone afterwards."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    program = shutil.which("chromium")
    assert program
    command = (f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', program, *FLAGS, f"--user-data-dir={folder / 'profile'}")
    process = subprocess.Popen(
        ["/bin/bash", "-c", *command], pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with os.fdopen(ours_out, "wb") as commands, os.fdopen(ours_in, "rb") as answers:
            yield Browser(commands, answers)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
