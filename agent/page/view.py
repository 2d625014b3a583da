"""report.json in HTML: one template per section, the same for report.html and the live page.

    report, run.json, figures -> sections -> {id: HTML}     in the order in which somebody wants to know
                              -> pages.{live, whole}        the page around them

Every number on the page stands in `<data value="...">` with the value of report.json itself, so a test can compare the two,
and a copy of the table keeps the digits. What was not measured says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup

from ranksight.agent.report.console import seconds, size

NOT_MEASURED = "not measured"
QUANTILES = ("p50", "p95", "p99", "p999", "max")
# id -> heading
SECTIONS = {
    "verdict": "Verdict",
    "stop": "Stop",
    "findings": "Findings",
    "steps": "Step time and loss",
    "costs": "Where time and money went",
    "waits": "Who is waited for",
    "pipeline": "Pipeline",
    "experts": "Experts",
    "tails": "Collectives and their tails",
    "numerics": "Numerics",
    "completeness": "Completeness",
    "environment": "Environment",
}


def sections(report: dict[str, Any], run: dict[str, Any], charts: set[str]) -> dict[str, str]:
    """The HTML of each section; `charts` are the figures that there are numbers for, `run` is run.json or empty."""
    templates = environment()
    return {
        name: templates.get_template(f"sections/{name}.html").render(
            report=report, run=run, charts=charts, heading=heading, quantiles=QUANTILES
        )
        for name, heading in SECTIONS.items()
    }


@lru_cache
def environment() -> Environment:
    """The templates with what they call; everything is escaped."""
    made = Environment(
        loader=PackageLoader("ranksight.agent.page"), autoescape=True, undefined=ChainableUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "seconds": lambda value: _cell(value, seconds),
        "size": lambda value: _cell(value, size),
        "rate": lambda value: _cell(value, lambda known: f"{size(known)}/s"),
        "percent": lambda value: _cell(value, lambda known: f"{100 * known:.3g} %"),
        "number": lambda value: _cell(value, lambda known: f"{known:,}" if isinstance(known, int) else f"{known:,.5g}"),
        "words": lambda value: str(value).replace("_", " "),
    }
    made.globals["NOT_MEASURED"] = NOT_MEASURED
    return made


def _cell(value: Any, say: Callable[[Any], str]) -> Markup:
    """A number with its unit and, for machines, its digits. NaN and inf come as their names."""
    if isinstance(value, str):
        return Markup("<data value='{}'>{}</data>").format(value, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Markup("<span class='unknown'>{}</span>").format(NOT_MEASURED)
    return Markup("<data value='{}'>{}</data>").format(repr(value), say(value))
