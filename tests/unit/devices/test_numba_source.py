"""What a CPU kernel is compiled with: small arrays that its rules would allow, too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.devices.cpu.numba import small_problem


@given(st.lists(st.integers(1, 1 << 20), min_size=3, max_size=3), st.integers(0, 6))
def test_a_cut_dim_keeps_its_small_powers_of_two(dims: list[int], power: int) -> None:
    problem = builtin().operation("gemm").problem(dict(zip("mnk", dims, strict=True)))
    for (_, whole), (_, cut) in zip(problem.shape, small_problem(problem).shape, strict=True):
        assert cut <= whole
        assert cut % 2**power == 0 or whole % 2**power != 0
