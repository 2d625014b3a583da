"""Spans that overlap, by precedence: literal timelines with exact answers, and rows that add up whatever comes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ranksight.agent.budget.partition import partition

S = 1_000_000_000


def parted(steps: list[tuple[float, float]], spans: list[tuple[float, float, int]], claims: int = 3) -> list[list[float]]:
    def column(rows: list[tuple[float, ...]], at: int) -> np.ndarray:
        return np.array([row[at] * S for row in rows], np.int64)

    claim = np.array([span[2] for span in spans], np.int64)
    found: list[list[float]] = partition(
        column(steps, 0), column(steps, 1), column(spans, 0), column(spans, 1), claim, claims  # type: ignore[arg-type]
    ).tolist()
    return found


def test_what_nobody_claims_is_last() -> None:
    assert parted([(0, 10)], []) == [[0, 0, 0, 10]]
    assert parted([(0, 10)], [(2, 5, 1)]) == [[0, 3, 0, 7]]


def test_the_lower_number_goes_first_and_cuts_the_other() -> None:
    assert parted([(0, 10)], [(0, 10, 2), (3, 4, 0), (3, 6, 1)]) == [[1, 2, 7, 0]]


def test_spans_of_one_claim_that_overlap_count_once() -> None:
    assert parted([(0, 10)], [(1, 5, 0), (2, 3, 0), (4, 7, 0)]) == [[6, 0, 0, 4]]


def test_a_span_over_two_steps_and_the_gap_between_them() -> None:
    assert parted([(0, 4), (6, 9)], [(3, 8, 0)]) == [[1, 0, 0, 3], [2, 0, 0, 1]]


def test_a_span_that_ends_before_it_begins_covers_nothing() -> None:
    assert parted([(0, 4)], [(3, 1, 0)]) == [[0, 0, 0, 4]]


@given(st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30), st.integers(0, 2)), max_size=20))
def test_rows_add_up_to_the_steps(spans: list[tuple[float, float, int]]) -> None:
    found = np.array(parted([(0, 7), (7, 20)], spans))
    assert np.allclose(found.sum(axis=1), [7, 13])
    assert (found >= 0).all()
