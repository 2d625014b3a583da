"""The dashboard: equal to what the generator writes, known to Grafana's own models, about series that exist.

There is no Grafana server to draw it. Grafana's published models read it and write it again: what they lose is a field
that Grafana does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from ranksight.dashboards import collectives
from tests.support.promql import names_and_labels
from tests.support.series import EXPORTED, RECORDED

COMMITTED = json.loads((collectives.GRAFANA / "collectives.json").read_text())
PANELS = [panel for panel in COMMITTED["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def lost(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Where `after` lacks what `before` has."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after.get(name), f"{where}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{where}[{number}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def test_the_committed_file_is_what_the_generator_writes(tmp_path: Path) -> None:
    collectives.write(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in collectives.GRAFANA.iterdir()
    }


def test_grafanas_models_know_every_field() -> None:
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(COMMITTED)))
    assert list(lost(COMMITTED, written)) == []


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in COMMITTED["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in COMMITTED["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < collectives.WIDTH, panel["title"]
        taken |= cells


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_queries_ask_for_series_that_exist_with_the_labels_they_have(title: str, expression: str) -> None:
    known = EXPORTED | RECORDED
    for name, labels in names_and_labels(promql_parser.parse(expression)):
        assert name in known, (title, name)
        assert labels - known[name] == set(), (title, name, labels)


def test_legends_and_variables_name_what_is_there() -> None:
    variables = {variable["name"] for variable in COMMITTED["templating"]["list"]}
    text = json.dumps(PANELS)
    assert set(re.findall(r"\$\{?([a-z]+)", text)) <= variables
    for variable in COMMITTED["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert asked and asked[2] in EXPORTED[asked[1]]
