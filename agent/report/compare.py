"""`ranksight compare D1 D2`: what changed between two runs, what did not, and what these two can't tell. Pure.

    two report.json -> compare -> {"headline", "rows", "loss", "findings", "figures", "notes"}

Each run gives the quantiles of a distribution over n steps, not its samples. The rank of the q-quantile among n samples
has a standard deviation of sqrt(n q (1 - q)) (binomial); so its value lies with 95 % confidence between the quantiles
q - h and q + h, h = 1.96 sqrt(q (1 - q) / n), which are read between the known quantiles, on a logarithmic scale. The
lower side of the median is taken as wide as the upper one, which is the wider in distributions with a long tail. The
two intervals together give that of the ratio. Operations of one step are not independent, so n is the steps, never the
operations; a quantile with q + h >= 1 has no upper bound, and the answer is that it can't be told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, median, stdev
from typing import Any

from ranksight.agent.words import ranks_in_words

Report = dict[str, Any]
Tail = dict[str, float | None]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
Z = NormalDist().inv_cdf(0.975)
SMALLEST_CHANGE = 0.02  # what is smaller is of no use to anybody, however sure it is
SAME_WITHIN = 0.05
MORE, LESS, SAME, UNKNOWN = "more", "less", "same", "can't be told"
LOSS_POINTS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One quantile of one quantity in both runs, in seconds. `change` is relative; `low` and `high` its 95 % interval."""

    what: str
    quantile: str
    first: float | None
    second: float | None
    change: float | None
    low: float | None
    high: float | None
    answer: str
    why: str | None = None


def compare(first: Report, second: Report) -> dict[str, Any]:
    """What is different in the second run; the dictionary of `--json`."""
    rows = list(_rows(first, second))
    loss = _loss(first, second)
    findings = _findings(first, second)
    return {
        "runs": [first["run"]["id"], second["run"]["id"]],
        "headline": _headline(rows, loss, findings),
        "rows": [asdict(row) for row in rows],
        "loss": loss,
        "findings": findings,
        "figures": _figures(first, second),
        "notes": _notes(first, second),
    }


def compare_tails(what: str, quantile: str, tails: tuple[Tail, Tail], steps: tuple[int, int]) -> Row:
    """Compare one quantile of two distributions over so many steps."""
    first, second = tails[0].get(quantile), tails[1].get(quantile)

    def row(answer: str, why: str | None = None, bounds: tuple[float, float] | None = None) -> Row:
        change = second / first - 1 if first and second is not None else None
        low, high = bounds or (None, None)
        return Row(what, quantile, first, second, change, low, high, answer, why)

    if first is None or second is None:
        return row(UNKNOWN, "not measured in both runs")
    if first == second == 0:
        return row(SAME)
    if first <= 0 or second <= 0:
        return row(UNKNOWN, "it is zero in one of the runs")
    q = QUANTILES[quantile]
    needed = math.floor(Z**2 * q / (1 - q)) + 1
    if min(steps) < max(needed, 20):
        return row(UNKNOWN, f"{quantile} needs {max(needed, 20)} steps in both runs, and there are {min(steps)}")
    width = math.hypot(*(_width(tail, q, n) for tail, n in zip(tails, steps, strict=True)))
    centre = math.log(second / first)
    low, high = math.expm1(centre - width), math.expm1(centre + width)
    change = second / first - 1
    if (low > 0 or high < 0) and abs(change) >= SMALLEST_CHANGE:
        return row(MORE if change > 0 else LESS, None, (low, high))
    if low >= -SAME_WITHIN and high <= SAME_WITHIN:
        return row(SAME, None, (low, high))
    return row(UNKNOWN, "the runs scatter more than they differ", (low, high))


def _width(tail: Tail, q: float, n: int) -> float:
    """Half the 95 % interval of the logarithm of a quantile: the wider side."""
    h = Z * math.sqrt(q * (1 - q) / n)
    known = [(at, math.log(value)) for name, at in QUANTILES.items() if (value := tail.get(name)) is not None and value > 0]
    here = _between(known, q)
    upper = _between(known, q + h) - here
    return max(upper, here - _between(known, q - h)) if q - h >= known[0][0] else upper


def _between(known: list[tuple[float, float]], q: float) -> float:
    for (left, low), (right, high) in itertools.pairwise(known):
        if q <= right:
            return low + (high - low) * (q - left) / (right - left)
    return known[-1][1]


def _rows(first: Report, second: Report) -> Iterator[Row]:
    steps = (first["run"]["steps"] or 0, second["run"]["steps"] or 0)
    for quantile in ("p50", "p95", "p99"):
        yield compare_tails("step", quantile, (_step_tail(first), _step_tail(second)), steps)
    parts = [_budget(report) for report in (first, second)]
    for part in parts[0]:
        if part in parts[1]:
            yield compare_tails(f"{part} per step", "p50", (parts[0][part], parts[1][part]), steps)
    ops = [{(row["axis"], row["op"]): row for row in report["collectives"].get("by_op", [])} for report in (first, second)]
    for key in ops[0]:
        if key in ops[1]:
            for name, quantile in (("duration", "p50"), ("duration", "p99"), ("wait", "p99"), ("transfer", "p50")):
                tails = (ops[0][key][f"{name}_seconds"], ops[1][key][f"{name}_seconds"])
                yield compare_tails(f"{' '.join(key)} {name}", quantile, tails, steps)


def _step_tail(report: Report) -> Tail:
    """The middle rank's distribution: in synchronous training all ranks' steps are equally long."""
    return _middle([row["seconds"] for row in report.get("steps", {}).get("per_rank", []) if row["seconds"]])


def _budget(report: Report) -> dict[str, Tail]:
    """The middle rank's distribution of each part of the step."""
    budget = report.get("budget") or {}
    rows = [row["distribution"] for row in budget.get("per_rank", []) if row.get("distribution")]
    return {part: _middle([row[part] for row in rows if row.get(part)]) for part in budget.get("parts", []) if rows}


def _middle(tails: list[Tail]) -> Tail:
    middle: Tail = {}
    for name in QUANTILES:
        known = [value for tail in tails if (value := tail.get(name)) is not None]
        middle[name] = median(known) if known else None
    return middle


def _loss(first: Report, second: Report) -> dict[str, Any]:
    """The difference of the losses over the last quarter of the steps that both runs have.

    Neighbouring points resemble one another; with a correlation of r, n of them count as n (1 - r) / (1 + r).
    """
    curves = []
    for report in (first, second):
        history = report.get("history") or {}
        values = (history.get("loss") or {}).get("mean", [])
        curves.append({step: value for step, value in zip(history.get("steps", []), values, strict=False) if value is not None})
    common = sorted(curves[0].keys() & curves[1].keys())
    last = common[-max(LOSS_POINTS, len(common) // 4) :]
    answer: dict[str, Any] = {"steps": [last[0], last[-1]] if last else None, "difference": None, "low": None, "high": None}
    if len(last) < LOSS_POINTS:
        return answer | {"answer": UNKNOWN, "why": f"the curves share {len(common)} points, and {LOSS_POINTS} are needed"}
    differences = [curves[1][step] - curves[0][step] for step in last]
    mean, scatter = fmean(differences), stdev(differences)
    if scatter == 0:
        return answer | {"difference": mean, "low": mean, "high": mean, "answer": _sign(mean, mean)}
    rest = [value - mean for value in differences]
    r = min(max(sum(a * b for a, b in itertools.pairwise(rest)) / sum(a * a for a in rest), 0.0), 0.95)
    half = Z * scatter / math.sqrt(len(last) * (1 - r) / (1 + r))
    return answer | {"difference": mean, "low": mean - half, "high": mean + half, "answer": _sign(mean - half, mean + half)}


def _sign(low: float, high: float) -> str:
    if low == high == 0:
        return SAME
    return MORE if low > 0 else LESS if high < 0 else UNKNOWN


def _findings(first: Report, second: Report) -> dict[str, list[str]]:
    """Kinds of faults with their ranks, by the runs that have them; remarks are left out."""
    found = [
        {f"{item['kind']} of {ranks_in_words(item['ranks']).lower()}" if item["ranks"] else item["kind"] for item in report["findings"]
         if item["severity"] != "info"}
        for report in (first, second)
    ]  # fmt: skip
    return {"gone": sorted(found[0] - found[1]), "new": sorted(found[1] - found[0]), "both": sorted(found[0] & found[1])}


def _figures(first: Report, second: Report) -> list[dict[str, Any]]:
    """Numbers of which a run has one: shown, not judged."""
    rows = []
    for where in (("tokens_per_second",), ("ettr",), ("mfu",), ("cost", "per_useful_million_tokens")):
        values: list[Any] = [report.get("goodput") or {} for report in (first, second)]
        for key in where:
            values = [(value or {}).get(key) for value in values]
        if None not in values:
            rows.append({"what": " ".join(where).replace("_", " "), "first": values[0], "second": values[1]})
    return rows


def _notes(first: Report, second: Report) -> list[str]:
    notes = [
        f"{what} differs: {first['run'][key]} and {second['run'][key]}"
        for key, what in (("world_size", "the number of ranks"), ("tap", "the tap"))
        if first["run"][key] != second["run"][key]
    ]
    for number, report in enumerate((first, second), 1):
        if report["completeness"]["records_dropped"]:
            notes.append(f"run {number} has lost {report['completeness']['records_dropped']} records")
    return [*notes, "two runs do not say how much runs of one and the same setup differ: repeat one to see that"]


def _headline(rows: list[Row], loss: dict[str, Any], findings: dict[str, list[str]]) -> str:
    step = next(row for row in rows if row.what == "step")
    if step.answer == UNKNOWN or step.change is None:
        words = f"Whether steps got faster or slower can't be told: {step.why}."
    elif step.answer == SAME:
        words = f"Steps take the same time (within {100 * SAME_WITHIN:.0f} %)."
    else:
        words = f"Steps take {abs(100 * step.change):.1f} % {step.answer} time in the second run."
    if loss["answer"] in {MORE, LESS}:
        words += f" Its loss is {'higher' if loss['answer'] == MORE else 'lower'} by {abs(loss['difference']):.3g}."
    for name in ("new", "gone"):
        if findings[name]:
            words += f" {name.capitalize()}: {', '.join(findings[name])}."
    return words
