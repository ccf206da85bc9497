"""Comparisons of arrays: with a reference, and byte by byte."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tuner.devices.comparing import BYTES, PIECE, checksums, differences, unequal

FINITE = st.floats(-1e6, 1e6, width=32)


@given(
    hnp.arrays(np.float64, st.integers(1, 50), elements=FINITE), st.data(), st.sampled_from([1e-6, 0.1]),
    st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_differences(values: np.ndarray, data: st.DataObject, tolerance: float, scale: float) -> None:
    output = data.draw(hnp.arrays(np.float32, values.shape, elements=FINITE))
    found = differences(np, output, values, tolerance, scale)
    away = [abs(float(one) - float(other)) for one, other in zip(output, values, strict=True)]
    allowed = [max(tolerance * (scale + abs(float(value))), 1e-300) for value in values]
    assert found.largest == max(away)
    assert found.ratio == max(one / other for one, other in zip(away, allowed, strict=True))
    assert found.total == pytest.approx(math.fsum(away))
    assert found.squares == pytest.approx(math.fsum(each * each for each in away))


@pytest.mark.parametrize("at", [0, PIECE - 1, PIECE, 2 * PIECE])
def test_one_element_is_found_wherever_it_lies(at: int) -> None:
    values = np.ones(2 * PIECE + 1)
    output = values.astype(np.float32)
    output[at] = 1.5
    assert differences(np, output, values, 0.1, 1.0).ratio == pytest.approx(2.5)
    output[at] = np.nan
    assert math.isnan(differences(np, output, values, 0.1, 1.0).ratio)
    assert differences(np, np.arange(5), np.arange(5.0), 0.0, 2.0).ratio == 0
    assert differences(np, np.arange(1, 6), np.arange(5.0), 0.0, 2.0).ratio > 1, "integers are exact"


@given(st.data(), st.sampled_from(["uint8", "uint32"]), st.integers(1, 3000))
def test_a_single_bit_makes_arrays_unequal(data: st.DataObject, dtype: str, count: int) -> None:
    one = np.random.default_rng(count).integers(0, 200, count).astype(dtype)
    other = one.copy()
    at, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 8 * one.itemsize - 1))
    other[at] ^= one.dtype.type(1 << bit)
    assert unequal(np, [(one, one.copy()), (one, other)]) == [False, True]
    behind = np.arange(BYTES + 8) == BYTES + 7  # the first piece is equal
    assert unequal(np, [(behind.view("uint8"), np.zeros(BYTES + 8, "uint8"))]) == [True]
    first, same, changed = checksums(np, [one, one.copy(), other])
    assert first == same != changed
