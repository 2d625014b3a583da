"""The two pages: report.html, whole in one file, and the live page with the data that it asks for again and again.

    report -> state -> {"title", "healthy", "sections": {id: HTML}, "figures": {name: plotly}}    /api/page
                    -> whole    report.html: everything inside, opens without a network and without a server
                    -> live     the page at /, whose scripts come from /static

Scripts of report.html are allowed by their digest, those of the live page by their origin; nothing else may run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ranksight.agent import files
from ranksight.agent.page import figures, view

Report = dict[str, Any]

# Charts set styles on their elements; no script may come from anywhere else, and nothing is sent anywhere.
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def state(report: Report, run: Report | None = None) -> dict[str, Any]:
    """All that changes on a page."""
    charts = figures.figures(report)
    return {
        "title": title(report),
        "healthy": report["verdict"]["healthy"],
        "sections": view.sections(report, run or {}, set(charts)),
        "figures": charts,
    }


def title(report: Report) -> str:
    """For the tab of a browser: the state first."""
    return f"{'healthy' if report['verdict']['healthy'] else 'NOT healthy'}: {report['run']['id']}"


def live(now: dict[str, Any]) -> str:
    """The page at /, already filled with a state: it is readable before its scripts have come."""
    return _page(now, live=True, plotly_path=plotly_path())


def whole(report: Report, run: Report | None = None) -> str:
    """report.html, about 5 MB, nearly all of it plotly's script."""
    now = state(report, run)
    scripts = [Markup(text.replace("</script", "<\\/script")) for text in (plotly(), asset("page.js"))]  # noqa: S704 - our own files
    digests = " ".join(f"'sha256-{_digest(str(script))}'" for script in scripts)
    policy = f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    # In a script element only `</` could end it, and JSON may write it so.
    figures_json = Markup(json.dumps(now["figures"], allow_nan=False).replace("<", "\\u003c"))  # noqa: S704 - escaped
    return _page(now, live=False, policy=policy, scripts=scripts, style=Markup(asset("page.css")), figures=figures_json)  # noqa: S704


def write(run_dir: Path, report: Report) -> Path:
    """Write report.html beside report.json; RunDirError when it can't be written."""
    info = run_dir / "run.json"
    path = run_dir / "report.html"
    files.write_atomically(path, whole(report, files.read_json(info) if info.exists() else {}).encode())
    return path


def _page(now: dict[str, Any], **more: Any) -> str:
    parts = {name: Markup(text) for name, text in now["sections"].items()}  # noqa: S704 - made by templates that escape
    page = view.environment().get_template("page.html")
    return page.render(title=now["title"], parts=parts, headings=view.SECTIONS, **more)


@lru_cache
def plotly() -> str:
    """Plotly's script, from its wheel."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")


@lru_cache
def plotly_path() -> str:
    """Where the live page has it: the name changes with the text, so browsers may keep it for good."""
    return f"/static/plotly-{hashlib.sha256(plotly().encode()).hexdigest()[:12]}.js"


@lru_cache
def asset(name: str) -> str:
    """A file of our own."""
    return (resources.files("ranksight.agent.page") / "static" / name).read_text("utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
