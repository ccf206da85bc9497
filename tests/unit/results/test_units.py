"""Figures for people have three digits, and one unit wherever they are shown."""

import pytest

from tuner.results.measurement import headline
from tuner.results.units import beside, duration, energy, speed

#: Work of gemm 4 x 8192 x 8192 in float32, which memory limits.
FLOPS, BYTES, TIME_S = 2 * 4 * 8192**2, 4 * (8192**2 + 2 * 4 * 8192), 6.72e-5


@pytest.mark.parametrize(("flops", "moved", "time_s", "shown"), [
    (2e12, 1e9, 1.0, "2 TFLOPS"), (6.0934e13, 1e9, 1.0, "60.9 TFLOPS"), (2e9, 1e8, 1.0, "2 GFLOPS"),
    (1e9, 1e9, 1e-3, "1000 GB/s"),
    (FLOPS, BYTES, TIME_S, "3998 GB/s"),
    (1.9996e15, 1e9, 1.0, "2000 TFLOPS"),
])  # fmt: skip
def test_a_speed_has_the_unit_of_its_limit(flops: float, moved: float, time_s: float, shown: str) -> None:
    assert speed(flops, moved, time_s) == shown


def test_times_and_energies_have_a_unit_that_suits() -> None:
    assert [duration(each) for each in (1.5, 2.5e-3, 1e-6, 12e-9)] == ["1.5 s", "2.5 ms", "1 us", "12 ns"]
    assert energy(0.25) == "250 mJ"


@pytest.mark.parametrize(("ratio", "low", "high", "told"), [
    (1.5, 1.49, 1.51, "1.500 x NumPy"), (1.184, 1.02, 1.31, "1.020 to 1.310 x NumPy"),
    (1.184, 0.97, 1.31, "as fast as NumPy (0.970 to 1.310 x)"),
    (0.692, 0.69, 0.7, "slower than NumPy: 0.692 of its speed"),
])  # fmt: skip
def test_where_rounds_disagree_their_interval_is_told(ratio: float, low: float, high: float, told: str) -> None:
    assert beside(ratio, low, high, "NumPy") == told


# --- Measurements: what a failure's reason says in a line

NUMBA = """TypingError: Failed in nopython mode pipeline (step: nopython frontend)
Unknown attribute 'foo' of type float32

File "kernel.py", line 10:
"""


@pytest.mark.parametrize(("reason", "said"), [
    ("MemoryError: ", "MemoryError"),
    ("\n error: identifier undefined\nmore", "error: identifier undefined"),
    (NUMBA, "TypingError: Unknown attribute 'foo' of type float32"),
    (NUMBA.splitlines()[0], NUMBA.splitlines()[0]),
])  # fmt: skip
def test_the_line_of_a_reason_that_says_most(reason: str, said: str) -> None:
    assert headline(reason) == said
