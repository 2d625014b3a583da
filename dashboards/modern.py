"""grafanalib writes the format of 2017 with panels of 2023; this brings what it writes up to schema 39 (Grafana 10 on).

    grafanalib Dashboard -> to_json -> modernise -> text of dashboards/grafana/*.json

Fields that Grafana dropped are removed, data sources become objects that follow the `datasource` variable, and queries
say whether they are instant. Panels that grafanalib has no class for are made with its own classes and `extraJson`.
"""

from __future__ import annotations

import json
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

_DROPPED = {
    "dashboard": ("rows", "hideControls", "sharedCrosshair", "style", "gnetId", "__inputs", "error", "id", "timePicker", "timepicker"),
    "panel": ("error", "span", "minSpan", "height", "cacheTimeout", "editable", "hideTimeOverride", "maxPerRow", "repeatDirection",
              "maxDataPoints", "color", "columns", "fontSize", "mappings"),
    "target": ("query", "target", "metric", "step", "intervalFactor"),
    "variable": ("useTags", "tagsQuery", "tagValuesQuery", "auto", "auto_min", "auto_count", "options", "current"),
}  # fmt: skip


def dumps(dashboard: core.Dashboard) -> str:
    """The JSON of a dashboard, in the modern format."""
    plain = json.loads(json.dumps(dashboard.auto_panel_ids().to_json_data(), cls=DashboardEncoder))
    return json.dumps(modernise(plain), indent=1) + "\n"


def modernise(dashboard: dict[str, Any]) -> dict[str, Any]:
    """The dashboard without what Grafana no longer knows."""
    modern = _without(dashboard, "dashboard")
    modern["schemaVersion"] = SCHEMA_VERSION
    modern["panels"] = [_panel(panel) for panel in dashboard["panels"]]
    modern["templating"] = {"list": [_variable(variable) for variable in dashboard["templating"]["list"]]}
    return modern


def heatmap(unit: str) -> dict[str, Any]:
    """What turns a time series panel into a heatmap of histogram buckets."""
    options = {
        "calculate": False,
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "reverse": True, "exponent": 0.5},
        "cellGap": 1,
        "tooltip": {"mode": "single", "yHistogram": True},
    }
    return {"type": "heatmap", "options": options}


def matrix(row: str, column: str) -> dict[str, Any]:
    """The transformation of a table of series into one row per value of a label and one column per value of another."""
    return {"id": "groupingToMatrix", "options": {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "null"}}


def coloured_cells() -> dict[str, Any]:
    """What makes a heatmap of a table: cells in the colour of their value, alike for every kind of colour vision."""
    cells = {"cellOptions": {"type": "color-background", "mode": "basic"}, "align": "center"}
    return {"fieldConfig": {"defaults": {"color": {"mode": "continuous-viridis"}, "custom": cells}}}


def _without(part: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _DROPPED[kind] and value is not None}


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    modern = _without(panel, "panel")
    if modern["type"] == "row":
        return {name: modern[name] for name in ("type", "title", "id", "gridPos", "collapsed", "panels")}
    modern["datasource"] = DATASOURCE
    modern["targets"] = [_target(target) for target in panel["targets"]]
    if modern["type"] == "heatmap":
        modern["fieldConfig"] = {"defaults": {}, "overrides": []}
    else:
        modern["fieldConfig"] = _compact(panel["fieldConfig"])
    return modern


def _compact(value: Any) -> Any:
    """Nested objects without nulls."""
    if isinstance(value, dict):
        return {name: _compact(part) for name, part in value.items() if part is not None}
    return value


def _target(target: dict[str, Any]) -> dict[str, Any]:
    return _without(target, "target") | {
        "datasource": DATASOURCE, "editorMode": "code", "range": not target["instant"],
        # Points of a histogram's own buckets lead to the trace of the step that they were measured in.
        "exemplar": "_bucket{" in target["expr"],
    }  # fmt: skip


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    modern = _without(variable, "variable")
    if modern["type"] == "query":
        modern["datasource"] = DATASOURCE
        modern["query"] = {"query": variable["query"], "refId": variable["name"]}
        modern["refresh"] = 2  # whenever the time range changes: runs come and go
        modern["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
    else:
        modern.pop("datasource", None)
    return modern
