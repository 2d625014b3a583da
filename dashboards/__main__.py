"""`python -m ranksight.dashboards`: writes the committed dashboards and rules again.

    boards -> grafana/*.json      recording_rules -> rules/*.yml      alert_rules -> alerts/alerts.yml
"""

from __future__ import annotations

from pathlib import Path

from ranksight.dashboards import alert_rules, modern, recording_rules
from ranksight.dashboards.boards import BOARDS
from ranksight.dashboards.panels import dashboard

GRAFANA = Path(__file__).with_name("grafana")


def write_boards(folder: Path) -> None:
    """One file per dashboard, named after it."""
    folder.mkdir(exist_ok=True)
    for board in BOARDS:
        (folder / f"{board.name}.json").write_text(modern.dumps(dashboard(board)))


if __name__ == "__main__":
    write_boards(GRAFANA)
    recording_rules.write(recording_rules.RULES)
    alert_rules.write(alert_rules.ALERTS)
