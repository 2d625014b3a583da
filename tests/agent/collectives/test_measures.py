"""Measures of collectives on literal tables: nanoseconds in, seconds out."""

import numpy as np
import pytest

from ranksight.agent.collectives import measures
from ranksight.hooks import wire

MS = 1_000_000


def ms(*values: float) -> np.ndarray:
    return (np.array(values) * MS).astype(np.int64)


def test_split_of_two_instances() -> None:
    #                     instance 0: rank 2 is late         instance 1: all together
    enter = np.concatenate((ms(0, 1, 190, 3), ms(200, 200, 200)))
    leave = np.concatenate((ms(195, 196, 194, 200), ms(205, 206, 207)))
    split = measures.split(enter, leave, np.array([0, 4]))
    assert split.skew.tolist() == [0.190, 0.0]
    assert split.transfer.tolist() == [0.004, 0.005]
    assert split.last.tolist() == [2, 4]
    assert split.wait.tolist() == [0.190, 0.189, 0.0, 0.187, 0.0, 0.0, 0.0]
    assert split.blame.tolist() == [pytest.approx(0.566), 0.0]


def test_a_broadcast_root_that_left_early_did_not_wait() -> None:
    split = measures.split(ms(0, 50), ms(2, 52), np.array([0]))
    assert split.wait.tolist() == [0.002, 0.0]
    assert split.transfer.tolist() == [0.0]  # the root was gone before the last one came


def test_duration_of_the_unfinished_is_unknown() -> None:
    assert np.array_equal(measures.duration(ms(1, 1), np.array([0, 3 * MS])), [np.nan, 0.002], equal_nan=True)


def test_exposed() -> None:
    sync, asynchronous = False, True
    table = [
        # enter, return, wait_begin, wait_end, complete, async -> exposed
        (0, 1, 1, 5, 5, sync, 0.005),  # the wait is part of the call's work
        (0, 5, 0, 0, 4, sync, 0.005),  # blocked until it returned
        (0, 1, 0, 0, 6, sync, 0.006),  # no wait recorded: blocked until complete
        (0, 1, 10, 12, 12, asynchronous, 0.003),  # computed from 1 to 10
        (0, 1, 10, 10.5, 4, asynchronous, 0.0015),  # complete long before it was waited for
        (0, 1, 0, 0, 4, asynchronous, None),  # nobody saw the wait
        (0, 0, 0, 0, 0, sync, None),  # still in the call
    ]
    columns = [ms(*column) for column in zip(*(row[:5] for row in table), strict=True)]
    enter, returned, wait_begin, wait_end, complete = columns
    found = measures.exposed(enter, returned, wait_begin, wait_end, complete, np.array([row[5] for row in table]))
    expected = [np.nan if row[6] is None else row[6] for row in table]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("op", "size", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("reduce_scatter_tensor", 4, 0.75),
        ("all_gather_into_tensor", 8, 0.875),
        ("all_to_all_single", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("send", 2, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_bus_factor_of_nccl_tests(op: str, size: int, factor: float) -> None:
    assert measures.bus_factor(op, size) == factor
    code = next(code for code, name in wire.OP_NAMES.items() if name == op)
    assert measures.bus_factors(np.array([code]), np.array([size])).tolist() == [factor]


def test_a_group_has_a_rank() -> None:
    with pytest.raises(ValueError, match="not 0"):
        measures.bus_factor("all_reduce", 0)
