"""Exports of kernels that take tensor maps, and of 16-bit products."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixtures.exported import CATALOGUE, champion, nvcc_warnings

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.export import export

GEMM = CATALOGUE.operation("gemm")


def case(name: str, dtype: str, layout: str = "nn", **changes: object) -> tuple[Kernel, Problem, dict]:
    (kernel,) = CATALOGUE.of("gemm", "cuda", (name,), dtype=dtype)
    problem = GEMM.problem({"m": 304, "n": 512, "k": 128}, dtype, layout)
    return kernel, problem, {**kernel.default_config(), **changes}


CASES = {
    "tensor maps": case("wgmma_tma", "bfloat16", "nt"),
    "shares, own stores": case(
        "wgmma_tma", "float16", "tn", SPLIT_K=2, STORE="registers", CLUSTER_M=1, WIDTH=128
    ),
    "shares that an early launch adds up": case(
        "wgmma_tma", "bfloat16", SPLIT_K=2, ADD="after", STORE="registers", CLUSTER_M=1, WIDTH=128, BLOCKS=0
    ),
    "ordinary cores": case("half_tiled", "bfloat16"),
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", CASES)
def test_nvcc_takes_the_source_with_its_check(name: str, tmp_path: Path) -> None:
    kernel, problem, config = CASES[name]
    (path,) = export(champion(kernel, problem, config), kernel, problem, "source", tmp_path)
    assert nvcc_warnings(path) == []
