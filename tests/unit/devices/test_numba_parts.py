"""What CPU kernels are compiled with, and compiled functions as modules of their own, which configs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cpu.numba import SourceParts, load_module, small_problem

PACKED = {
    "WIDTH": 8, "MR": 6, "NR": 16, "MC": 48, "KC": 64, "NC": 256, "UNROLL": 1, "PREFETCH": 0, "THREADS": 2,
    "SHARE": "B", "SLABS": 1,
}  # fmt: skip
BUILTIN = builtin()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled before a test."""
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))


def gemm() -> Problem:
    return BUILTIN.operation("gemm").problem({"m": 64, "n": 64, "k": 64})


def rendered(kernel: str, config: dict[str, object]) -> Rendered:
    (found,) = BUILTIN.of("gemm", "cpu", (kernel,))
    return render(found, gemm(), Config(config))  # type: ignore[arg-type]


def test_configs_of_packed_share_their_functions() -> None:
    changes = ({}, {"MC": 24}, {"KC": 128}, {"NC": 512}, {"THREADS": 4}, {"SHARE": "both"}, {"UNROLL": 2})
    texts = [SourceParts(rendered("packed", PACKED | change).text) for change in changes]
    functions = ("_take_part", "pack_a", "pack_b", "multiply_block")
    # Blocks, threads and who packs are told when it runs; the innermost loop is another with another UNROLL.
    assert [len({text.of(name) for text in texts}) for name in functions] == [1, 1, 1, 2]
    one, other = (load_module(rendered("packed", PACKED | more), in_parts=True) for more in ({}, {"MC": 96}))
    assert one.__globals__["multiply_block"] is other.__globals__["multiply_block"]
    assert one.__globals__["MC"] != other.__globals__["MC"]


SOURCE = """
import math
SIZE = 4
OTHER = 5
SIZE = SIZE + 1
table = {}
table["effect"] = OTHER
@njit
def helper(x):
    return x + SIZE
def unused():
    return UNUSED
@registers(1)
def registered():
    return math.pi
@njit(cache=True)
def wanted(x):
    return helper(x)
"""


def test_a_part_has_what_it_refers_to_and_all_that_may_have_an_effect() -> None:
    part = SourceParts(SOURCE).of("wanted")
    assert part.splitlines() == [
        line for line in SOURCE.splitlines() if line and line not in ("def unused():", "    return UNUSED")
    ]


@given(st.lists(st.integers(1, 1 << 20), min_size=3, max_size=3), st.integers(0, 6))
def test_a_cut_dim_keeps_its_small_powers_of_two(dims: list[int], power: int) -> None:
    problem = builtin().operation("gemm").problem(dict(zip("mnk", dims, strict=True)))
    for (_, whole), (_, cut) in zip(problem.shape, small_problem(problem).shape, strict=True):
        assert cut <= whole
        assert cut % 2**power == 0 or whole % 2**power != 0
