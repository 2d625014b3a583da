"""The series that Prometheus holds: what the agents export by the catalogue, and what the rules record."""

from __future__ import annotations

from collections.abc import Iterator

from ranksight.agent import catalog
from ranksight.dashboards import recording_rules


def _exported(spec: catalog.Spec) -> Iterator[tuple[str, set[str]]]:
    labels = {*spec.labels, "job", "instance"}
    if spec.type == catalog.Type.HISTOGRAM:
        yield from ((f"{spec.name}_bucket", labels | {"le"}), (f"{spec.name}_sum", labels), (f"{spec.name}_count", labels))
    else:
        yield spec.name, labels


def _level(record: str) -> set[str]:
    """The labels that a record has by its name."""
    named = record.split(":", maxsplit=1)[0].split("_")
    return {"job", *named} | ({"axis"} if "group" in named else set())


EXPORTED = {name: labels for spec in catalog.METRICS for name, labels in _exported(spec)}
RECORDED = {rule.record: _level(rule.record) for group in recording_rules.GROUPS for rule in group.rules}
# What Prometheus itself keeps of the alerts.
EXPORTED["ALERTS"] = {"alertname", "alertstate", "severity", "action", "condition", "job", "instance"}
