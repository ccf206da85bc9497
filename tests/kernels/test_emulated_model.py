"""The arithmetic of the emulated gemm, in NumPy: the contract on every kind of inputs that is emulated."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_model import drawn, emulated, half, largest_error, plain, shared, split

#: What the check lets pass.
EMULATED = (
    "normal", "uniform", "positive", "lognormal:2", "rows", "outlier:1e4", "outlier_zeros:1e4", "relu", "empty",
    "zeros",
)  # fmt: skip


@pytest.mark.parametrize("k", [128, 200, 1024])
@pytest.mark.parametrize("kind", EMULATED)
def test_largest_error_is_at_most_twice_that_of_fp32(kind: str, k: int) -> None:
    a, b = drawn(kind, 32, 32, k)
    assert largest_error(emulated(a, b), a, b) <= 2 * largest_error(plain(a, b), a, b)


@pytest.mark.parametrize(("k", "blocks"), [(4096, 16), (2048, 32), (704, 8)])
@pytest.mark.parametrize("kind", ["normal", "uniform", "positive", "lognormal:2", "outlier:1e4"])
def test_short_compensated_chunks_match_a_library_that_shares_k(kind: str, k: int, blocks: int) -> None:
    a, b = drawn(kind, 16, 16, k)
    allowed = 2 * largest_error(shared(a, b, blocks), a, b)
    assert largest_error(emulated(a, b, 32, compensated=True), a, b) <= allowed


def test_compensated_sums_do_not_drift_with_k() -> None:
    errors = []
    for k in (256, 4096):
        a, b = drawn("positive", 16, 16, k)
        errors.append(largest_error(emulated(a, b, compensated=True), a, b))
        assert errors[-1] < 6e-7
    a, b = drawn("positive", 16, 16, 4096)
    assert errors[1] < largest_error(emulated(a, b), a, b)


@pytest.mark.parametrize("largest", [65519.0, 65520.0, 65535.99, 32768.0])
def test_the_largest_element_of_a_chunk_never_becomes_infinite(largest: float) -> None:
    x = np.full((1, 64), 1.0)
    x[0, 3] = largest
    high, low, factor, _ = split(x, 1)
    assert np.isfinite(half(high)).all()
    assert (high + low)[0, 3] * factor[0] == pytest.approx(largest, rel=2**-22)


def test_rms_error_is_at_most_half_of_fp32s_on_normal_inputs() -> None:
    a, b = drawn("normal", 48, 48, 1024)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(emulated(a, b) - exact) <= 0.5 * np.linalg.norm(plain(a, b) - exact)


@pytest.mark.parametrize(("most", "k"), [(16, 1024), (181, 128), (2048, 1)])
def test_whole_numbers_are_exact_while_their_sums_are(most: int, k: int) -> None:
    a, b = drawn(f"integers:{most}", 32, 32, k)
    assert (np.abs(a) @ np.abs(b)).max() <= 2**22
    np.testing.assert_array_equal(emulated(a, b), a.astype(np.float64) @ b.astype(np.float64))


def test_long_sums_inside_the_tensor_cores_lose_what_short_chunks_keep() -> None:
    a, b = drawn("positive", 16, 16, 2048)
    errors = [largest_error(emulated(a, b, chunk), a, b) for chunk in (64, 512)]
    assert errors[1] > 4 * errors[0]


def test_low_parts_scaled_up_keep_what_lies_far_below_the_largest() -> None:
    a, b = drawn("outlier_zeros:1e8", 16, 16, 256)
    assert largest_error(emulated(a, b), a, b) < 1e-6  # 3e-4 with low parts as they are
