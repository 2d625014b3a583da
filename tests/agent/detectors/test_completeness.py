"""What is missing is said: dropped records exactly, silent ranks, unreadable rings, ranks without a tap."""

from typing import Any

from ranksight.agent.detectors.completeness import CompletenessFacts, RankCompleteness, incomplete_data
from ranksight.agent.findings import Severity
from ranksight.agent.reading.reader import Counts

WHOLE = Counts(1000, 1000, 0)


def rank(number: int, **changes: Any) -> RankCompleteness:
    values: dict[str, Any] = {
        "rank": number, "tap": "native", "collectives": WHOLE, "events": WHOLE, "skipped": 0, "late_completions": 0,
        "errors": 0, "notes": (),
    }  # fmt: skip
    return RankCompleteness(**(values | changes))


def facts(*ranks: RankCompleteness, **changes: Any) -> CompletenessFacts:
    values: dict[str, Any] = {
        "expected": len(ranks), "ranks": ranks, "silent": (), "unreadable": {}, "incomplete_instances": 0,
        "partial_instances": 0,
    }  # fmt: skip
    return CompletenessFacts(**(values | changes))


def test_all_seen_is_no_finding() -> None:
    assert incomplete_data(facts(rank(0), rank(1))) == ()


def test_dropped_records_are_named_per_rank() -> None:
    dropped = rank(3, collectives=Counts(20_000, 16_500, 3_500), events=Counts(100, 99, 1))
    (finding,) = incomplete_data(facts(rank(0), dropped, incomplete_instances=3_500))
    assert finding.message.startswith("3500 of 20000 records dropped on rank 3; 1 of 100 events dropped on rank 3:")
    assert (finding.kind, finding.category, finding.severity) == ("incomplete_data", "observer", Severity.WARNING)
    assert finding.ranks == (3,)
    assert finding.evidence["dropped"] == {"3": 3500}


def test_a_few_dropped_records_are_information() -> None:
    (finding,) = incomplete_data(facts(rank(0, collectives=Counts(100_000, 99_999, 1))))
    assert finding.severity == Severity.INFO


def test_silent_ranks_unreadable_rings_and_missing_taps() -> None:
    found = incomplete_data(
        facts(
            rank(0),
            rank(1, tap="none"),
            expected=4,
            silent=(2, 3),
            unreadable={"7-7.ring": "7-7.ring: not a ring file"},
        )
    )
    assert [finding.message for finding in found] == [
        "Nothing was heard from rank 2, 3: 2 of 4 ranks are observed.",
        "A ring file can't be read: 7-7.ring: not a ring file.",
        "Collectives are not seen on rank 1: no tap could be installed there.",
    ]
    assert [finding.ranks for finding in found] == [(2, 3), (), (1,)]


def test_operations_withheld_by_a_lower_detail_are_counted_per_rank() -> None:
    (finding,) = incomplete_data(facts(rank(0), rank(2, skipped=3000)))
    assert finding.message.startswith("3000 of 4000 operations not recorded on rank 2: the detail was lowered")
    assert (finding.severity, finding.ranks) == (Severity.WARNING, (2,))
