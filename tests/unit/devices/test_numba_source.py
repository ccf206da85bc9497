"""What a CPU kernel is compiled with: small arrays that its rules would allow, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.devices.cpu.numba import small_problem

ROOT = Path(__file__).resolve().parents[3]
COMPILE = """
from tuner.declare.catalogue import builtin
from tuner.devices.cpu.numba import NumbaCompiler
from tuner.declare.kernel import render
from tuner.declare.space import Config

problem = builtin().operation("transpose").problem({"m": 4096, "n": 4096})
(kernel,) = builtin().of("transpose", "cpu", ("micro_tiles",))
config = {"ROWS": 16, "COLUMNS": 512, "STREAM": True, "PREFETCH": 0, "THREADS": 1, "WIDTH": WIDTH}
NumbaCompiler().compile(render(kernel, problem, Config(config)), "", problem)
"""


@given(st.lists(st.integers(1, 1 << 20), min_size=3, max_size=3), st.integers(0, 6))
def test_a_cut_dim_keeps_its_small_powers_of_two(dims: list[int], power: int) -> None:
    problem = builtin().operation("gemm").problem(dict(zip("mnk", dims, strict=True)))
    for (_, whole), (_, cut) in zip(problem.shape, small_problem(problem).shape, strict=True):
        assert cut <= whole
        assert cut % 2**power == 0 or whole % 2**power != 0


@pytest.mark.parametrize("width", [4, 8])
def test_kernels_that_need_aligned_rows_have_them_when_they_are_compiled(width: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE.replace("WIDTH}", f"{width}}}")],
        cwd=ROOT,
        env={"PATH": "", "HOME": str(tmp_path), "TUNER_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-500:]
