"""Edge shapes: ones, primes, around a config's tile, long and thin; only those at which it must be right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Tensor, Work
from tuner.declare.space import Config, Constraint, choice
from tuner.workers.further_checks import CASES, LIMIT_BYTES, LONG, edge_problems

BOARD = DeviceInfo("Board", "cuda", max_threads_per_block=1024)
OPERATION = Operation(
    name="outer",
    dims=("m", "n"),
    dtypes=("float32", "float64"),
    tensors=lambda p: (Tensor("c", (p.m, p.n), p.dtype, output=True),),
    work=lambda p: Work(flops=1.0, bytes=1.0),
    reference=lambda xp, p, arrays: xp.zeros((p.m, p.n)),
)


def kernel(*constraints: Constraint) -> Kernel:
    """All that counts are its parameters and rules."""
    return Kernel(
        operation="outer", name="plain", target="cpu", source=Path("none.numba.py"),
        parameters=(choice("TILE", *range(1, 600)), choice("FAST", 0, 1)), constraints=constraints,
    )  # fmt: skip


def shapes(tile: int, *constraints: Constraint, dtype: str = "float32") -> list[tuple[int, ...]]:
    problem = OPERATION.problem({"m": 1000, "n": 2000}, dtype)
    found = edge_problems(problem, kernel(*constraints), Config({"TILE": tile, "FAST": 1}), BOARD)
    assert all((each.operation, each.dtype) == (OPERATION, dtype) for each in found)
    return [tuple(size for _, size in each.shape) for each in found]


@pytest.mark.parametrize("dtype", OPERATION.dtypes)
def test_ones_primes_the_tile_and_its_neighbours_and_thin_ones(dtype: str) -> None:
    found = shapes(48, dtype=dtype)
    assert found[:5] == [(1, 1), (37, 61), (47, 47), (48, 48), (49, 49)]
    assert {(LONG, 1), (1, LONG), (LONG, 3), (3, LONG)} <= set(found)


@given(st.integers(1, 599))
def test_they_are_few_small_and_different(tile: int) -> None:
    found = shapes(tile)
    assert 5 <= len(found) <= CASES
    assert len(set(found)) == len(found)
    assert all(4 * m * n <= LIMIT_BYTES for m, n in found)


def test_where_the_config_breaks_a_rule_it_need_not_be_right() -> None:
    even = Constraint("rows are in pairs", lambda p, d, c: p.m % 2 == 0)
    assert shapes(48, even)
    assert all(m % 2 == 0 for m, _ in shapes(48, even))


def test_a_rule_for_speed_alone_may_be_broken() -> None:
    large = Constraint("worth its while", lambda p, d, c: p.m > 10_000, for_speed=True)
    assert shapes(48, large) == shapes(48)
    assert shapes(48, replace(large, for_speed=False)) == []
