"""The files that start Grafana and its servers: read by the servers' own checkers, about files and names that exist.

Nothing here starts a container.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ranksight.dashboards.__main__ import GRAFANA
from ranksight.dashboards.recording_rules import RULES

COMPOSE = GRAFANA.parent / "compose"


def read(name: str) -> Any:
    return yaml.safe_load((COMPOSE / name).read_text())


@pytest.mark.system("promtool")
def test_prometheus_accepts_its_configuration_with_all_rules(tmp_path: Path) -> None:
    shutil.copy(COMPOSE / "prometheus.yml", tmp_path)
    shutil.copytree(RULES, tmp_path / "rules")
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for rules in RULES.glob("*.yml"):
        assert rules.name in checked.stdout


def test_what_is_mounted_exists_and_nothing_listens_beyond_loopback() -> None:
    services = read("docker-compose.yml")["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        listening = [*service.get("command", ()), *(f"{name}={value}" for name, value in service.get("environment", {}).items())]
        if service.get("network_mode") == "host":
            assert any("127.0.0.1" in word for word in listening), service["image"]


def test_grafana_finds_the_dashboards_and_the_traces_of_exemplars() -> None:
    (provider,) = read("provisioning/dashboards/ranksight.yml")["providers"]
    mounts = read("docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"../grafana:{provider['options']['path']}:ro" in mounts
    sources = {source["name"]: source for source in read("provisioning/datasources/ranksight.yml")["datasources"]}
    (destination,) = sources["Prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destination == {"name": "trace_id", "datasourceUid": sources["Jaeger"]["uid"]}


def test_prometheus_is_where_grafana_looks_for_it() -> None:
    (listens,) = [
        word for word in read("docker-compose.yml")["services"]["prometheus"]["command"] if "listen-address" in word
    ]
    sources = read("provisioning/datasources/ranksight.yml")["datasources"]
    assert sources[0]["url"] == f"http://{listens.partition('=')[2]}"
