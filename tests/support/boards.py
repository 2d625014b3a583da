"""The queries of all dashboards, as Grafana would send them."""

from __future__ import annotations

import json

from ranksight.dashboards.__main__ import GRAFANA

CHOSEN = {"$tail": "p99", "$window": "1m"}  # every other variable stands for all of its values
VARIABLES = ("$job", "$host", "$run", "$axis", "$op", "$rank", "$stage")


def queries() -> dict[str, str]:
    """Expressions by board, panel and letter, with something chosen for every variable."""
    found = {}
    for path in sorted(GRAFANA.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"]
                for variable, value in {**CHOSEN, **dict.fromkeys(VARIABLES, ".*")}.items():
                    expr = expr.replace(variable, value)
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = expr
    return found
