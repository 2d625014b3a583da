"""What a dashboard is made of: boards of rows of panels, each with a question, how to read the answer, and its queries.

    Board(rows of Panel) -> dashboard() -> grafanalib Dashboard, laid out and with the variables above it

Everything of a whole job comes from the recording rules, everything of one rank from the agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grafanalib import core

from ranksight.dashboards import modern
from ranksight.dashboards.recording_rules import GROUPS, metric

WIDTH = 24
RECORDS = frozenset(rule.record for group in GROUPS for rule in group.rules)

TAG = "ranksight"
COMMON = ("datasource", "job", "host", "run")
CHOICES = {"tail": ("Tail", "p99,p50,p95,p999,max"), "window": ("Window", "1m,5m")}
LABELS = {
    "job": ("Job", "run_info", "job"),
    "host": ("Host", "run_info", "instance"),
    "run": ("Run", "run_info", "run"),
    "axis": ("Axis", "collective_operations_total", "axis"),
    "op": ("Operation", "collective_operations_total", "op"),
    "rank": ("Rank", "rank_up", "rank"),
}

JOB, HOST = 'job=~"$job"', 'instance=~"$host"'
RUN = 'run=~"$run"'
AXIS, RANK, OP, STAGE = 'axis=~"$axis"', 'rank=~"$rank"', 'op=~"$op"', 'stage=~"$stage"'
TAIL = 'tail="$tail", window="$window"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what is asked, how to read it, the queries with the text of their legend, and where it is drawn."""

    kind: str  # timeseries, stat, state, table, matrix, heatmap
    title: str
    description: str
    queries: Sequence[tuple[str, str]]
    unit: str
    width: int
    height: int = 8
    log: bool = False
    states: Sequence[str] = ()  # of a panel of kind state: the word for each number
    matrix: tuple[str, str] = ("", "")  # of a panel of kind matrix: the labels of its rows and columns


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: `name` is that of its file, `rows` gives the titles of its rows and the panels in them."""

    name: str
    title: str
    about: str
    rows: Callable[[], list[tuple[str, list[Panel]]]]
    variables: tuple[str, ...] = ()  # beside those that every board has


def record(name: str, *matchers: str) -> str:
    """A recorded series of the chosen runs; KeyError when no rule records it."""
    if name not in RECORDS:
        raise KeyError(name)
    return f"{name}{{{', '.join((JOB, RUN, *matchers))}}}"


def selector(name: str, *matchers: str) -> str:
    """A series of the chosen agents, of whatever run; KeyError when the catalogue lacks it."""
    base, _, suffix = name.partition("!")
    return f"{metric(base)}{suffix}{{{', '.join((JOB, HOST, *matchers))}}}"


def exported(name: str, *matchers: str, function: str = "") -> str:
    """A series of the chosen agents, for the chosen runs; `function` "rate" or "increase" looks at its last minute.

    `name!_bucket` is the bucket series of a histogram.
    """
    series = selector(name, *matchers)
    series = f"{function}({series}[1m])" if function else series
    return f"{series} * on (job, instance) group_left (run) {metric('run_info')}{{{RUN}}}"


def dashboard(board: Board) -> core.Dashboard:
    """The dashboard as grafanalib knows it."""
    drawn: list[core.Panel] = []
    top = 0
    for title, row in board.rows():
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
        title=f"ranksight: {board.title}",
        description=board.about,
        uid=f"ranksight-{board.name}",
        tags=[TAG],
        refresh="5s",
        time=core.Time("now-15m", "now"),
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        panels=drawn,
        # One bar with all boards, which keeps what was chosen and the time.
        links=[core.DashboardLink(title="ranksight", tags=[TAG], type="dashboards", asDropdown=False, includeVars=True, keepTime=True)],
        templating=core.Templating([variable(name) for name in (*COMMON, *board.variables)]),
    )


def variable(name: str) -> core.Template:
    """What can be chosen above the panels; KeyError for a name that no board has."""
    if name == "datasource":
        return core.Template(name=name, label="Prometheus", type="datasource", query="prometheus")
    if name in CHOICES:
        label, choices = CHOICES[name]
        return core.Template(name=name, label=label, type="custom", query=choices)
    label, series, of = LABELS[name]
    query = f"label_values({metric(series)}, {of})"
    return core.Template(name=name, label=label, query=query, includeAll=True, multi=True)


def draw(panel: Panel, where: core.GridPos) -> core.Panel:
    """A panel at its place."""
    instant = panel.kind in {"table", "stat", "state", "matrix"}
    targets = [
        core.Target(
            expr=expr, legendFormat=legend, refId=chr(ord("A") + number), instant=instant,
            format={"table": "table", "matrix": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
        )
        for number, (expr, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    common = {"title": panel.title, "description": panel.description, "targets": targets, "gridPos": where}
    if panel.kind in {"stat", "state"}:
        words = [core.StatValueMappingItem(word, str(number)) for number, word in enumerate(panel.states)]
        # No data is shown as such: a missing number is not zero.
        return core.Stat(
            **common, format=panel.unit, reduceCalc="lastNotNull", noValue="not known", graphMode="none",
            textMode="value_and_name", thresholds=[{"color": "text", "value": None}],
            mappings=[core.StatValueMappings(*words)] if words else [],
        )  # fmt: skip
    if panel.kind == "matrix":
        row, column = panel.matrix
        return core.Table(
            **common, unit=panel.unit, transformations=[modern.matrix(row, column)], extraJson=modern.coloured_cells()
        )
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


