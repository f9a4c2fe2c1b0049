"""The hash that stands for a parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drivetrain import ConfigError, Fabric, ParameterCheck
from drivetrain.comm.collectives import SoloCollectives
from drivetrain.strategies.parameter_check import BLOCK, ROW, check_same_values, fingerprint

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8,
    torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
LENGTHS = [1, 2, ROW - 1, ROW, ROW + 1, 3 * ROW + 5, BLOCK + ROW + 1]


def plain(tensor: Tensor) -> int:
    """The hash as a number."""
    return int(fingerprint(tensor))


def random_bits(length: int) -> Tensor:
    """float32 numbers of all kinds."""
    bits = torch.randint(-(2**31), 2**31, (length,), generator=torch.Generator().manual_seed(length))
    return bits.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_bit_for_bit(dtype: torch.dtype) -> None:
    """A model in half precision could not be checked, or differences below one would be cut off."""
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    assert fingerprint(tensor).dtype == torch.int64 and fingerprint(tensor).ndim == 0
    assert plain(tensor) == plain(tensor.clone())
    other = tensor.clone()
    other.view(torch.uint8)[1, 2] ^= 1
    assert plain(other) != plain(tensor)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_element_that_differs_is_seen_wherever_it_is(length: int) -> None:
    """Elements at the end of a row, or beyond it, would not count."""
    tensor = random_bits(length)
    known = {plain(tensor)}
    places = sorted({0, length // 2, max(0, length - 2), length - 1, *(p for p in (ROW - 1, ROW) if p < length)})
    for place in places:
        for bit in (0, 22, 31):
            bits = tensor.clone().view(torch.int32)
            bits[place] ^= -(2**31) if bit == 31 else 1 << bit
            known.add(plain(bits.view(torch.float32)))
    assert len(known) == 1 + 3 * len(places)


def test_a_sign_that_differs_is_seen_in_each_place() -> None:
    """The highest of 64 bits, times an even number, would be nothing."""
    tensor = torch.ones(256, dtype=torch.float64)
    known = plain(tensor)
    for place in range(len(tensor)):
        other = tensor.clone()
        other[place] = -1
        assert plain(other) != known


@given(st.data())
def test_elements_that_change_places_are_seen(data: st.DataObject) -> None:
    """Two ranks with the same numbers in another order would count as equal."""
    length = data.draw(st.sampled_from([2, 7, ROW + 9, 2 * ROW + 3]))
    first, second = data.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=2, unique=True))
    tensor = random_bits(length)
    swapped = tensor.clone()
    swapped[[first, second]] = tensor[[second, first]]
    assert plain(swapped) != plain(tensor)


def test_places_of_rows_and_in_rows_cannot_be_exchanged() -> None:
    """Elements (1, 2) and (2, 1) of a tensor of many rows would stand for each other."""
    tensor = random_bits(4 * ROW).view(4, ROW)
    swapped = tensor.clone()
    swapped[1, 2], swapped[2, 1] = tensor[2, 1], tensor[1, 2]
    assert plain(swapped) != plain(tensor)


@pytest.mark.parametrize(
    "change", [torch.neg, lambda t: t.flip(0), lambda t: t * 2, lambda t: t.roll(1), torch.zeros_like]
)
def test_a_whole_tensor_that_is_changed_alike_is_seen(change: Any) -> None:
    """Changes in all elements would cancel each other in the sum."""
    tensor = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    assert plain(change(tensor)) != plain(tensor)


def test_nan_is_equal_to_the_same_nan_alone() -> None:
    """A run with a nan on all ranks would end with a wrong reason, or nans would hide what differs."""
    tensor = torch.tensor([1.0, math.nan])
    other = tensor.clone()
    other.view(torch.int32)[1] += 1
    assert other.isnan()[1]
    assert plain(tensor) == plain(tensor.clone())
    assert plain(other) != plain(tensor)
    assert plain(torch.tensor(0.0)) != plain(torch.tensor(-0.0))


def test_the_layout_in_memory_does_not_count() -> None:
    """Ranks with transposed or strided copies of the same values would be said to differ."""
    tensor = random_bits(6 * 5 * 4 * 3).view(6, 5, 4, 3)
    assert plain(tensor.contiguous(memory_format=torch.channels_last)) == plain(tensor)
    assert plain(tensor.mT) == plain(tensor.mT.contiguous())
    long = random_bits(3 * ROW + 1)
    assert plain(long[::3]) == plain(long[::3].clone())
    numbers = torch.randn(4, dtype=torch.complex64)
    assert plain(numbers.conj()) == plain(numbers.conj().resolve_conj())


def test_tensors_without_elements_have_a_hash() -> None:
    """A module with an empty parameter could not be checked."""
    assert plain(torch.empty(0)) == plain(torch.empty(0, 3))


def test_one_rank_compares_nothing() -> None:
    """A run on one rank would pay for what cannot differ."""
    assert check_same_values(nn.Linear(2, 2), SoloCollectives()) == 0
    assert Fabric(accelerator="cpu", devices=1).check_parameters(nn.Linear(2, 2)) == 0


@pytest.mark.parametrize("every_n_steps", [0, -1])
def test_an_interval_below_one_step_is_refused(every_n_steps: int) -> None:
    """It would divide by 0 after the first step, or never look."""
    with pytest.raises(ConfigError, match=f"every_n_steps={every_n_steps}") as caught:
        ParameterCheck(every_n_steps)
    assert caught.value.code == "parameter-check"
