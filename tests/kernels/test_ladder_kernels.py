"""What steps of the ladders promise beyond a right result: padding, compensated sums, pieces of a vector."""

from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import compile_for_cpu
from products import gemm, kernel_of
from test_cuda_kernels import assert_right

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel, render
from tuner.declare.space import Config

GEMV = builtin().operation("gemv")
CONSTANT = kernel_of("constant", "gemv")
SMALL = {"BLOCK_X": 8, "BLOCK_Y": 4, "BLOCK": 16, "COLUMNS": 2, "PIECE": 256, "BORDER": "check"}


def config(kernel: Kernel, **chosen: object) -> Config:
    values = {**SMALL, "ACCUMULATE": "plain", "PITCH": 1, **chosen}
    if kernel.name == "row_shared":
        values["BLOCK"] = 32
    return Config({each.name: values[each.name] for each in kernel.parameters})


@pytest.mark.parametrize(
    ("name", "dtype"), [("naive", "float32"), ("row_shared", "float64"), ("tiled", "float32")]
)
def test_compensated_sums_are_at_least_five_times_as_accurate(name: str, dtype: str, folder: Path) -> None:
    problem, kernel = gemm(16, 16, 1000, dtype=dtype), kernel_of(name)
    rng = np.random.default_rng(0)
    arrays = {each.name: rng.random(each.shape).astype(dtype) for each in problem.inputs}
    exact = arrays["a"].astype(np.longdouble) @ arrays["b"].astype(np.longdouble)
    errors = {}
    for accumulate in ("plain", "kahan"):
        rendered = render(kernel, problem, config(kernel, ACCUMULATE=accumulate))
        c = compile_for_cpu(rendered, folder).run(problem, rendered.launch, arrays)["c"]
        errors[accumulate] = float(np.mean(np.abs(c - exact) / np.abs(exact)))
    assert errors["plain"] > 5 * errors["kahan"]
    assert errors["kahan"] < np.finfo(dtype).eps / 2


@pytest.mark.parametrize("layout", ["n", "t"])
def test_a_vector_longer_than_constant_memory_comes_in_pieces(layout: str, folder: Path) -> None:
    for n in (1, 255, 256, 257, 1000):
        problem = GEMV.problem({"m": 37, "n": n}, layout=layout)
        chosen = Config({"BLOCK": 32, "PIECE": 256, "UNROLL": 4})
        assert_right(CONSTANT, problem, chosen, folder, "backward")
