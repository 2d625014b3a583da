"""Charts for report.html and the live page, as plain plotly figures: {"data", "layout"}. Pure.

    report.json -> figures(report) -> {name: figure}; a chart whose numbers were not measured is left out

Colours are those of Okabe and Ito, told apart by every kind of colour vision, and parts of a bar have patterns, too;
scales are cividis. Text, grid and background come from the page, which knows whether it is dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Report = dict[str, Any]
Figure = dict[str, Any]

BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#8C8C8C",
)  # fmt: skip
# (colour, pattern) of the parts of a step
PARTS = {
    "data": (YELLOW, ""), "forward": (BLUE, ""), "backward": (SKY, ""), "optimizer": (GREEN, ""),
    "transfer": (ORANGE, ""), "wait": (VERMILLION, ""), "bubble": (VERMILLION, "/"), "checkpoint": (PURPLE, ""),
    "pause": (PURPLE, "x"), "other": (GREY, ""),
}  # fmt: skip
ACTIONS = {
    "forward": (BLUE, ""), "backward": (SKY, ""), "input_grad": (SKY, "/"), "weight_grad": (GREEN, ""),
    "send_forward": (ORANGE, ""), "recv_forward": (ORANGE, "/"), "send_backward": (YELLOW, ""),
    "recv_backward": (YELLOW, "/"),
}  # fmt: skip
BUCKETS = {
    "productive": (BLUE, ""), "startup": (SKY, ""), "checkpoint": (PURPLE, ""), "stall": (VERMILLION, ""),
    "wasted": (ORANGE, "x"), "restart": (YELLOW, ""), "other": (GREY, ""),
}  # fmt: skip
CAUSES = {
    "warmup_cooldown": (SKY, ""), "stage_imbalance": (VERMILLION, ""), "transfer": (ORANGE, ""),
    "upstream_straggler": (PURPLE, ""), "input_or_gc": (YELLOW, ""), "other": (GREY, ""),
}  # fmt: skip


def figures(report: Report) -> dict[str, Figure]:
    """Every chart that the report has numbers for."""
    made = {name: make(report) for name, make in _MAKERS.items()}
    return {name: figure for name, figure in made.items() if figure is not None}


def _steps(report: Report) -> Figure | None:
    return _curve(report, "seconds", "seconds", "mean over ranks", "slowest rank")


def _loss(report: Report) -> Figure | None:
    return _curve(report, "loss", "loss", "mean over ranks that report it", "largest")


def _grad_norm(report: Report) -> Figure | None:
    return _curve(report, "grad_norm", "gradient norm", "mean over ranks that report it", "largest")


def _curve(report: Report, name: str, unit: str, mean: str, largest: str) -> Figure | None:
    history = report.get("history") or {}
    curve = history.get(name)
    if not curve:
        return None
    lines = ((mean, curve["mean"], BLUE, "solid"), (largest, curve["max"], ORANGE, "dot"))
    data = [
        {
            "type": "scatter", "mode": "lines", "name": label, "x": history["steps"], "y": _short(values),
            "line": {"color": colour, "dash": dash, "width": 2}, "connectgaps": False,
        }
        for label, values, colour, dash in lines
    ]  # fmt: skip
    return _figure(data, x="step", y=unit)


def _blame(report: Report) -> Figure | None:
    """Seconds that the others waited for each rank, by axis."""
    blame = report.get("collectives", {}).get("blame_seconds") or {}
    ranks = sorted({rank for row in blame.values() for rank in row}, key=_rank_order)
    if not ranks:
        return None
    heat = {
        "type": "heatmap", "colorscale": "Cividis", "x": ranks, "y": list(blame), "xgap": 1, "ygap": 1,
        "z": [_short(row.get(rank) for rank in ranks) for row in blame.values()],
        "hovertemplate": "rank %{x}, axis %{y}: the others waited %{z:.3g} s<extra></extra>",
        "colorbar": {"title": {"text": "s"}, "thickness": 12},
    }  # fmt: skip
    return _figure([heat], x="rank", y="axis", height=120 + 34 * len(blame), x_category=True, y_category=True)


def _budget(report: Report) -> Figure | None:
    """Every second of each rank, in one of the parts."""
    rows = (report.get("budget") or {}).get("per_rank") or []
    ranks = [str(row["rank"]) for row in rows]
    parts = {part: [row["seconds"].get(part) for row in rows] for part in PARTS}
    return _bars(ranks, parts, PARTS, y="rank", x="seconds")


def _goodput(report: Report) -> Figure | None:
    buckets = (report.get("goodput") or {}).get("buckets") or {}
    return _bars(["run"] if buckets else [], {name: [buckets.get(name)] for name in BUCKETS}, BUCKETS, y="", x="seconds")


def _bubble(report: Report) -> Figure | None:
    """Where the idle time of each rank comes from."""
    rows = [row for row in (report.get("pipeline") or {}).get("per_rank") or [] if row.get("bubble")]
    ranks = [str(row["rank"]) for row in rows]
    causes = {cause: [(row["bubble"].get("causes") or {}).get(cause) for row in rows] for cause in CAUSES}
    return _bars(ranks, causes, CAUSES, y="rank", x="seconds idle")


def _timeline(report: Report) -> Figure | None:
    """The last pipeline step: a bar per action, from the first one's begin."""
    actions = ((report.get("pipeline") or {}).get("last_step") or {}).get("actions") or []
    if not actions:
        return None
    begin = min(action["begin"] for action in actions)
    ranks = sorted({action["rank"] for action in actions})
    data = []
    for name in sorted({action["action"] for action in actions}, key=_action_order):
        mine = [action for action in actions if action["action"] == name]
        colour, pattern = ACTIONS.get(name, (GREY, ""))
        data.append(
            {
                "type": "bar", "orientation": "h", "name": name, "y": [str(action["rank"]) for action in mine],
                "base": _short(action["begin"] - begin for action in mine),
                "x": _short(action["end"] - action["begin"] for action in mine),
                "customdata": [[action["stage"], action["microbatch"]] for action in mine],
                "hovertemplate": f"{name}, stage %{{customdata[0]}}, microbatch %{{customdata[1]}}: %{{x:.3g}} s"
                "<extra>rank %{y}</extra>",
                "marker": {"color": colour, "pattern": {"shape": pattern}},
            }
        )  # fmt: skip
    height = 140 + 26 * len(ranks)
    order = [str(rank) for rank in reversed(ranks)]
    return _figure(data, x="seconds since the step's first action", y="rank", height=height, bars="overlay", order=order)


def _experts(report: Report) -> Figure | None:
    """Tokens that each rank's experts got."""
    rows = [row for row in (report.get("experts") or {}).get("ranks") or [] if row.get("tokens") is not None]
    if not rows:
        return None
    tokens = [row["tokens"] for row in rows]
    mean = sum(tokens) / len(tokens)
    ranks = [str(row["rank"]) for row in rows]
    data = [
        {"type": "bar", "name": "tokens", "x": ranks, "y": tokens, "marker": {"color": BLUE}},
        {
            "type": "scatter", "mode": "lines", "name": "even share", "x": ranks, "y": [mean] * len(ranks),
            "line": {"color": VERMILLION, "dash": "dash"},
        },
    ]  # fmt: skip
    return _figure(data, x="rank", y="tokens", x_category=True)


def _bars(
    rows: list[str], parts: dict[str, list[float | None]], looks: dict[str, tuple[str, str]], *, y: str, x: str
) -> Figure | None:
    """Stacked bars, one per row; parts that nobody measured are left out."""
    if not rows:
        return None
    data = [
        {
            "type": "bar", "orientation": "h", "name": name.replace("_", " "), "y": rows, "x": _short(values),
            "marker": {"color": looks[name][0], "pattern": {"shape": looks[name][1]}},
            "hovertemplate": f"{name}: %{{x:.4g}} s<extra>{y} %{{y}}</extra>",
        }
        for name, values in parts.items()
        if any(value is not None for value in values)
    ]  # fmt: skip
    return _figure(data, x=x, y=y, height=140 + 24 * len(rows), bars="stack", order=rows[::-1]) if data else None


def _figure(
    data: list[Figure], *, x: str, y: str, height: int = 280, bars: str | None = None,
    order: list[str] | None = None, x_category: bool = False, y_category: bool = False,
) -> Figure:  # fmt: skip
    layout: Figure = {
        "height": height,
        "margin": {"l": 64, "r": 12, "t": 8, "b": 44},
        "xaxis": {"title": {"text": x}, "zeroline": False} | ({"type": "category"} if x_category else {}),
        "yaxis": {"title": {"text": y}, "zeroline": False} | ({"type": "category"} if y_category else {}),
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": len(data) > 1,
    }
    if bars:
        layout |= {"barmode": bars, "bargap": 0.15}
    if order is not None:
        layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": order}
    return {"data": data, "layout": layout}


def _short(values: Iterable[float | None]) -> list[float | None]:
    """Six digits are more than a chart shows, and a third of the bytes."""
    return [value if value is None or isinstance(value, str) else float(f"{value:.6g}") for value in values]


def _rank_order(rank: str) -> tuple[bool, int, str]:
    return (not rank.isdigit(), int(rank) if rank.isdigit() else 0, rank)


def _action_order(name: str) -> tuple[int, str]:
    return (list(ACTIONS).index(name) if name in ACTIONS else len(ACTIONS), name)


_MAKERS: dict[str, Callable[[Report], Figure | None]] = {
    "steps": _steps,
    "loss": _loss,
    "grad_norm": _grad_norm,
    "blame": _blame,
    "budget": _budget,
    "goodput": _goodput,
    "bubble": _bubble,
    "timeline": _timeline,
    "experts": _experts,
}
