"""Findings: the vocabulary is whole, the JSON is the report's, nonsense is refused."""

from pathlib import Path

import pytest

from ranksight.agent.findings import CATEGORIES, CATEGORY_OF, MEANINGS, NOT_DETECTED, Finding, Severity, markdown

DOCS = Path(__file__).resolve().parents[2] / "docs" / "findings.md"
REACTS = {"policy", "bench_detect"}  # name kinds without making findings of them
FIELDS = {
    "kind", "category", "severity", "cause", "ranks", "hosts", "group", "stage", "layer", "experts", "op", "group_seq",
    "call_site", "first_step", "last_step", "detected_step", "detection_seconds", "cost_seconds", "message", "advice",
    "evidence", "action",
}  # fmt: skip


def test_every_kind_has_one_category_and_a_meaning() -> None:
    assert sum(map(len, CATEGORIES.values())) == len(CATEGORY_OF)
    assert list(MEANINGS) == [kind for kinds in CATEGORIES.values() for kind in kinds]


def test_the_documented_table_is_the_generated_one() -> None:
    assert DOCS.read_text().endswith(markdown())


def test_a_kind_is_looked_for_exactly_when_some_detector_makes_it() -> None:
    agent = DOCS.parents[1] / "agent"
    source = "".join(path.read_text() for path in agent.rglob("*.py") if path.name != "findings.py" and not REACTS & {*path.parts})
    made = {kind for kind in CATEGORY_OF if f'"{kind}"' in source}
    assert made == set(CATEGORY_OF) - NOT_DETECTED


def test_json_has_the_fields_of_the_report() -> None:
    finding = Finding(kind="straggler", severity=Severity.WARNING, message="m", advice="a", ranks=(1,), cause="compute")
    json = finding.to_json()
    assert set(json) == FIELDS
    assert (json["category"], json["ranks"], json["severity"], json["stage"]) == ("slow", [1], "warning", None)


@pytest.mark.parametrize(("change", "said"), [({"kind": "slowness"}, "slowness"), ({"cause": "magic"}, "magic")])
def test_unknown_words_are_errors_that_name_them(change: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Finding(**({"kind": "pause", "severity": Severity.INFO, "message": "m", "advice": "a"} | change))  # type: ignore[arg-type]
