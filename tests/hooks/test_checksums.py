"""Checksums of parameters: every element once, one bit changes them, nothing is written to."""

import pytest
import torch

from ranksight.hooks import checksums
from ranksight.hooks.checksums import SLICE_BYTES, checksum, slices_of


def halves(parameters: list[torch.Tensor]) -> list[list[float]]:
    found = [checksum(parameters, part) for part in slices_of(parameters)]
    return [half.tolist() for half in found if half is not None]


def test_slices_cover_every_element_once_and_stay_small() -> None:
    parameters = [torch.zeros(700_000), torch.zeros(3, 5), torch.zeros(10, dtype=torch.bfloat16)]
    seen = [torch.zeros(parameter.numel()) for parameter in parameters]
    for part in slices_of(parameters):
        size = 0
        for index, first, count in part:
            seen[index][first : first + count] += 1
            size += count * parameters[index].element_size()
        assert size <= SLICE_BYTES
    assert all(bool((counts == 1).all()) for counts in seen)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_equal_parameters_have_equal_sums_and_one_bit_tells_them_apart(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mine = [(10 * torch.randn(50, 3)).to(dtype), (10 * torch.randn(7)).to(dtype)]
    twin = [parameter.clone() for parameter in mine]
    assert halves(mine) == halves(twin)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    twin[1].view(integers[twin[1].element_size()])[3] ^= 1
    assert halves(mine) != halves(twin)


def test_values_that_change_places_between_parameters_are_seen() -> None:
    one, two = torch.ones(4), torch.full((4,), 2.0)
    assert halves([one, two]) != halves([two, one])


def test_the_sum_is_exact_in_two_doubles() -> None:
    parameters = [torch.full((1000,), -1.5, dtype=torch.float64)]
    ((low, high),) = halves(parameters)
    bits = int(parameters[0].view(torch.int64).sum())
    assert (int(high) << 32) + int(low) == bits


def test_what_cannot_be_summed_is_left_out() -> None:
    sparse = torch.eye(3).to_sparse()
    transposed = torch.zeros(4, 5).t()
    assert slices_of([sparse, transposed]) == []
    assert checksum([sparse], []) is None


def test_taking_sums_leaves_no_trace_in_autograd() -> None:
    weight = torch.nn.Parameter(torch.randn(8))
    with torch.no_grad():
        assert checksum([weight], slices_of([weight])[0]) is not None
    assert weight.grad_fn is None
    assert weight._version == 0
    assert checksums.EVERY > 1
