"""Products as problems, the kernels for them, and what NVRTC makes of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config

GEMM = builtin().operation("gemm")
LAYOUTS = GEMM.layouts


def gemm(
    m: int, n: int, k: int, layout: str = "nn", dtype: str = "", precision: str = "", epilogue: str = ""
) -> Problem:
    """A product of m x k by k x n."""
    return GEMM.problem({"m": m, "n": n, "k": k}, dtype, layout, precision, epilogue)


def kernel_of(name: str, operation: str = "gemm", target: str = "cuda") -> Kernel:
    """A built-in kernel."""
    (kernel,) = builtin().of(operation, target, (name,))
    return kernel


def by_nvrtc(
    kernel: Kernel, of: Problem, config: Mapping[str, Any], architecture: str = "sm_90a"
) -> tuple[bytes, str, int]:
    """Cubin, log and spilled bytes of a kernel; skips the test where NVRTC is missing."""
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")
    from tuner.devices.cuda.nvrtc import compile_cubin, read_report

    rendered = render(kernel, of, Config(config))
    cubin, log = compile_cubin(rendered.text, architecture, rendered.options)
    return cubin, log, read_report(log, cubin).spill_bytes
