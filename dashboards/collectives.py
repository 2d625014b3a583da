"""The Grafana dashboard "Collectives": who waits for whom, on which axis, and how long.

    agent.catalog, recording_rules -> dashboard() -> modern.dumps -> dashboards/grafana/collectives.json
                                                         (`python -m ranksight.dashboards.collectives`)

From top to bottom as one asks: is the picture whole and does the job move; where are the tails; who is waited for; what
the network did; and the steps of each rank. Everything of a whole job comes from the recording rules, everything of one
rank from the agents. The heading of a panel is a question, its description says how to read the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grafanalib import core

from ranksight.dashboards import modern
from ranksight.dashboards.recording_rules import GROUPS, metric

GRAFANA = Path(__file__).with_name("grafana")
WIDTH = 24
RECORDS = frozenset(rule.record for group in GROUPS for rule in group.rules)

RUN = 'run=~"$run"'
AXIS, RANK, OP = 'axis=~"$axis"', 'rank=~"$rank"', 'op=~"$op"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what is asked, how to read it, the queries with the text of their legend, and where it is drawn."""

    kind: str  # timeseries, stat, table, heatmap
    title: str
    description: str
    queries: Sequence[tuple[str, str]]
    unit: str
    width: int
    height: int = 8
    log: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def record(name: str, *matchers: str) -> str:
    """A recorded series of the chosen runs; KeyError when no rule records it."""
    if name not in RECORDS:
        raise KeyError(name)
    return f"{name}{{{', '.join((RUN, *matchers))}}}"


def exported(name: str, *matchers: str) -> str:
    """A series of the agents, for the chosen runs; KeyError when the catalogue lacks it."""
    selector = f"{metric(name)}{{{', '.join(matchers)}}}" if matchers else metric(name)
    return f"{selector} * on (job, instance) group_left (run) {metric('run_info')}{{{RUN}}}"


def panels() -> list[tuple[str, list[Panel]]]:
    """Titles of rows and the panels in them."""
    tail = 'tail="$tail", window="$window"'
    return [
        (
            "Is the picture whole, and does the job move?",
            [
                Panel("stat", "Ranks alive", "Processes that an agent sees alive.", [(record("run:ranksight_rank_up:sum"), "{{run}}")], "short", 6, 4),
                Panel("stat", "Steps", "Training steps per second.", [(record("run:ranksight_steps:rate1m"), "{{run}}")], "ops", 6, 4),
                Panel("stat", "Records lost", "Share of records that were overwritten before the agent read them. What is below misses them.", [(record("run:ranksight_records_dropped:ratio_rate5m"), "{{run}}")], "percentunit", 6, 4),
                Panel("stat", "Cost of watching", "Time of tap and hooks divided by the time of all steps, of the rank with the most.", [(record("run:ranksight_hook_overhead_ratio:max"), "{{run}}")], "percentunit", 6, 4),
            ],
        ),
        (
            "How long do collectives take?",
            [
                Panel("timeseries", "Duration by axis, all ranks", "From the call to the completion, waiting included. From merged histograms: exact to one bucket (1, 2.5, 5, 10).", [
                    (record("run_axis_op:ranksight_collective_duration_seconds:p50_1m", AXIS, OP), "p50 {{axis}} {{op}}"),
                    (record("run_axis_op:ranksight_collective_duration_seconds:p99_1m", AXIS, OP), "p99 {{axis}} {{op}}"),
                    (record("run_axis_op:ranksight_collective_duration_seconds:p999_1m", AXIS, OP), "p99.9 {{axis}} {{op}}"),
                ], "s", 12, log=True),
                Panel("heatmap", "Durations", "Operations per second by duration.", [(f"sum by (le) ({record('run_axis_op_le:ranksight_collective_duration_seconds_bucket:rate1m', AXIS, OP)})", "{{le}}")], "s", 12),
                Panel("timeseries", "Duration by rank", "The chosen tail over the chosen window, as each agent measured it (1 %). The ranks of a group are alike here, also when one of them is slow.", [(f"max by (run, rank, axis, op) ({exported('collective_duration_tail_seconds', AXIS, OP, RANK, tail)})", "{{axis}} {{op}} rank {{rank}}")], "s", 12, log=True),
                Panel("timeseries", "Exposed time by rank", "Seconds per second for which the calling thread was blocked in collectives.", [(record("run_rank_axis:ranksight_collective_exposed_seconds:rate5m", AXIS, RANK), "{{axis}} rank {{rank}}")], "percentunit", 12),
            ],
        ),
        (
            "Who is waited for?",
            [
                Panel("table", "Awaited ranks", "In each process group the rank that spends the least time in it, because it arrives last, and what the member that waits most loses, in seconds per second. Only groups of which every member is seen.", [(f"sort_desc({record('run_group_rank:ranksight_group_awaited_seconds:rate1m', AXIS)})", "")], "percentunit", 12),
                Panel("table", "Did not join", "While nothing moves: members whose count of launched operations lags behind the others.", [(record("run_group_rank:ranksight_group_not_joined_operations:lag60s", AXIS), "")], "short", 12),
                Panel("timeseries", "Blame", "What other ranks of the same host waited for this one, in seconds per second.", [(record("run_rank_axis:ranksight_blame_seconds:rate5m", AXIS, RANK), "{{axis}} rank {{rank}}")], "percentunit", 12),
                Panel("timeseries", "Wait by rank", "The chosen tail of the time from a rank's arrival to the last one's. The culprit is the rank that waits least.", [(f"max by (run, rank, axis, op) ({exported('collective_wait_tail_seconds', AXIS, OP, RANK, tail)})", "{{axis}} {{op}} rank {{rank}}")], "s", 12, log=True),
                Panel("timeseries", "Oldest operation in flight", "It grows without end in a hang, on every rank that waits.", [(f"max by (run, rank) ({exported('in_flight_oldest_seconds', RANK)})", "rank {{rank}}")], "s", 12),
                Panel("timeseries", "Steps behind", "How many steps a rank is behind the first one.", [(record("run_rank:ranksight_step_in_progress:lag", RANK), "rank {{rank}}")], "short", 12),
            ],
        ),
        (
            "What did the network do?",
            [
                Panel("timeseries", "Transfer", "The chosen tail of the time from the last arrival to the first completion: nobody is waited for here.", [(f"max by (run, axis, op, size) ({exported('collective_transfer_tail_seconds', AXIS, OP, tail)})", "{{axis}} {{op}} up to {{size}}")], "s", 12, log=True),
                Panel("timeseries", "Bus bandwidth", "By the convention of nccl-tests, over the time of transfer.", [(record("run_axis_op:ranksight_collective_bus_bytes_per_second:rate5m", AXIS, OP), "{{axis}} {{op}}")], "Bps", 12),
            ],
        ),
        (
            "What did the ranks do?",
            [
                Panel("timeseries", "Step duration by rank", "The chosen tail over the chosen window.", [(f"max by (run, rank) ({exported('step_duration_tail_seconds', RANK, tail)})", "rank {{rank}}")], "s", 12),
                Panel("timeseries", "Loss", "The last loss that backward() was called on: a rank's own, one microbatch's under pipelining.", [(f"max by (run, rank) ({exported('loss', RANK)})", "rank {{rank}}")], "short", 12),
            ],
        ),
    ]  # fmt: skip


def dashboard() -> core.Dashboard:
    """The dashboard as grafanalib knows it."""
    drawn: list[core.Panel] = []
    top = 0
    for title, row in panels():
        drawn.append(core.RowPanel(title=title, gridPos=core.GridPos(1, WIDTH, 0, top)))
        top += 1
        left = height = 0
        for panel in row:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            drawn.append(draw(panel, core.GridPos(panel.height, panel.width, left, top)))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return core.Dashboard(
        title="ranksight: collectives",
        uid="ranksight-collectives",
        tags=["ranksight"],
        refresh="5s",
        time=core.Time("now-15m", "now"),
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        panels=drawn,
        templating=core.Templating(variables()),
    )


def variables() -> list[core.Template]:
    """What can be chosen above the panels."""
    operations = metric("collective_operations_total")
    return [
        core.Template(name="datasource", label="Prometheus", type="datasource", query="prometheus"),
        core.Template(name="run", label="Run", query=f"label_values({metric('run_info')}, run)", includeAll=True, multi=True),
        core.Template(name="axis", label="Axis", query=f"label_values({operations}, axis)", includeAll=True, multi=True),
        core.Template(name="op", label="Operation", query=f"label_values({operations}, op)", includeAll=True, multi=True),
        core.Template(name="rank", label="Rank", query=f"label_values({metric('rank_up')}, rank)", includeAll=True, multi=True),
        core.Template(name="tail", label="Tail", type="custom", query="p99,p50,p95,p999,max"),
        core.Template(name="window", label="Window", type="custom", query="1m,5m"),
    ]


def draw(panel: Panel, where: core.GridPos) -> core.Panel:
    """A panel at its place."""
    instant = panel.kind in {"table", "stat"}
    targets = [
        core.Target(
            expr=expr, legendFormat=legend, refId=chr(ord("A") + number), instant=instant,
            format={"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
        )
        for number, (expr, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    common = {"title": panel.title, "description": panel.description, "targets": targets, "gridPos": where}
    if panel.kind == "stat":
        # No data is shown as such: a missing number is not zero.
        return core.Stat(
            **common, format=panel.unit, reduceCalc="lastNotNull", noValue="not known", graphMode="none",
            textMode="value_and_name", thresholds=[{"color": "text", "value": None}],
        )  # fmt: skip
    if panel.kind == "table":
        hidden = {"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True, "job": True}}}
        return core.Table(**common, unit=panel.unit, transformations=[hidden])
    if panel.kind == "heatmap":
        return core.TimeSeries(**common, extraJson=modern.heatmap(panel.unit))
    scale = {"scaleDistributionType": "log", "scaleDistributionLog": 10} if panel.log else {}
    return core.TimeSeries(
        **common, **scale, unit=panel.unit, lineWidth=1, showPoints="never", tooltipMode="multi", tooltipSort="desc",
        legendDisplayMode="list", legendPlacement="bottom",
    )  # fmt: skip


def write(folder: Path) -> None:
    """The dashboard as a file."""
    folder.mkdir(exist_ok=True)
    (folder / "collectives.json").write_text(modern.dumps(dashboard()))


if __name__ == "__main__":
    write(GRAFANA)
