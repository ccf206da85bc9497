"""CUDA source of a kernel that finishes a product in place, where the library has no such epilogue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.declare.epilogue import Epilogue
from tuner.declare.folders import kernels_folder
from tuner.declare.problem import Problem
from tuner.devices.cuda.language import macros


def element_wise_source(problem: Problem, rest: Epilogue) -> str:
    """CUDA source of a kernel that adds a bias, applies an activation and adds a residual, in place."""
    constants = problem.operation.constants(replace(problem, epilogue=rest.text), "cuda")
    folder = kernels_folder() / "gemm" / "cuda"
    names = ("epilogue.cuh",) if problem.dtype == "float32" else ("half.cuh", "epilogue.cuh")
    files = [*(folder / name for name in names), Path(__file__).with_suffix(".cu")]
    return "\n".join([*macros(constants), *(file.read_text(encoding="utf-8") for file in files)])
