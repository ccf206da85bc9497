"""Exports of products with an epilogue take its operands and factors."""

import math
from pathlib import Path

import numpy as np
import pytest
from fixtures.exported import CATALOGUE, GXX, champion, imported, run_on_host

from tuner.export import export

ALL = "alpha+beta+bias-col+gelu+residual"


def exported(name: str, target: str, epilogue: str, form: str, folder: Path, **config: object) -> Path:
    (kernel,), dtype = CATALOGUE.of("gemm", target, (name,)), "bfloat16" if name == "wgmma_tma" else ""
    problem = CATALOGUE.operation("gemm").problem({"m": 67, "n": 45, "k": 33}, dtype, epilogue=epilogue)
    case = champion(kernel, problem, {**kernel.default_config(), **config}), kernel, problem
    return export(*case, form, folder)[0]


def test_a_python_module_takes_them_by_name(tmp_path: Path) -> None:
    module = imported(exported("naive", "cpu", ALL, "python", tmp_path, THREADS=1))
    rng = np.random.default_rng(0)
    a, b, c, r = (rng.standard_normal(s).astype("f4") for s in ((9, 4), (4, 6), (9, 6), (9, 6)))
    bias = rng.standard_normal(6).astype("f4")
    x = 3.0 * (a.astype(float) @ b) - 2.0 * c + bias
    wanted = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) + r
    assert np.abs(module.matmul(a, b, c, bias, r, alpha=3.0, beta=-2.0) - wanted).max() < 1e-5


@GXX
@pytest.mark.parametrize("epilogue", [ALL, "bias-row+gelu-tanh", "silu"])
def test_a_cuda_source_checks_itself_with_it(epilogue: str, tmp_path: Path) -> None:
    path = exported("naive", "cuda", epilogue, "source", tmp_path)
    # The host's maths has these by other names.
    path.write_text(f"#include <cmath>\n{path.read_text()}")
    code, told = run_on_host(path)
    assert (code, told.endswith("PASSED\n")) == (0, True), told


def test_the_signature_has_operands_before_the_result_and_factors_last(tmp_path: Path) -> None:
    text = exported(
        "wgmma_tma", "cuda", "beta+bias-col+gelu", "source", tmp_path, BORDER="pad", STORE="registers"
    ).read_text()
    taken = text[text.index("cudaError_t launch_matmul(") :].partition(")")[0]
    assert [word.split()[-1].lstrip("*") for word in taken.partition("(")[2].split(",")] == [
        "a", "b", "c_in", "bias", "c", "m", "n", "k", "beta", "0",
    ]  # fmt: skip
