"""A real Prometheus for tests: started on loopback, ready when it says so, stopped at the end of the block.

    with prometheus(tmp_path, free_port(), targets=[f"127.0.0.1:{agent_port}"]) as server:
        for sample in server.query('ranksight_rank_up{rank="0"}'):
            sample.labels, sample.value
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

READY_SECONDS = 60.0


class Sample(NamedTuple):
    """One series of an answer, at the time of the query."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expr: str) -> list[Sample]:
        """The instant vector of an expression; AssertionError with Prometheus' words when it is refused."""
        data = urllib.parse.urlencode({"query": expr}).encode()
        try:
            answer = self._get("/api/v1/query", data)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}: {error.read().decode()}") from error
        return [Sample(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def unhealthy_rules(self) -> list[str]:
        """Rules whose last evaluation failed, with the reason."""
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return [f"{rule['name']}: {rule['lastError']}" for group in groups for rule in group["rules"] if rule.get("lastError")]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str, data: bytes | None = None) -> Any:
        with urllib.request.urlopen(self._url + path, data=data, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def prometheus(
    folder: Path, port: int, targets: Sequence[str], *, rules: Sequence[Path] = (), interval: str = "500ms", job: str = "train"
) -> Iterator[Prometheus]:
    """Start a server that scrapes `targets` and evaluates `rules` every `interval`."""
    config = folder / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
                "rule_files": [str(path) for path in rules],
                "scrape_configs": [{"job_name": job, "static_configs": [{"targets": list(targets)}]}],
            }
        )
    )
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=2h",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            deadline = time.monotonic() + READY_SECONDS
            while not server.ready():
                ended = process.poll() is not None or time.monotonic() > deadline
                assert not ended, (folder / "prometheus.log").read_text()
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            process.wait(30)
