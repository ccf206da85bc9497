"""CUDA source of a kernel that finishes a product in place, where the library has no such epilogue."""

from __future__ import annotations

from dataclasses import replace

from tuner.declare.epilogue import Epilogue
from tuner.declare.folders import kernels_folder
from tuner.declare.problem import Problem
from tuner.devices.cuda.language import macros

#: Finishes C in place; behind half.cuh and epilogue.cuh, of which it is made.
SOURCE = """
extern "C" __global__ void finish(EPILOGUE_STORED* c, EPILOGUE_OPERANDS long long count, int n)
{
    const long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        const Epilogue epilogue = EPILOGUE_GIVEN;
        const float x = epilogue(epilogue_value(c[i]), (unsigned)(i / n), (unsigned)(i % n), n);
#ifdef SCALAR
        c[i] = x;
#else
        c[i] = rounded(x);
#endif
    }
}
"""


def element_wise_source(problem: Problem, rest: Epilogue) -> str:
    """CUDA source of a kernel that adds a bias, applies an activation and adds a residual, in place."""
    constants = problem.operation.constants(replace(problem, epilogue=rest.text), "cuda")
    folder = kernels_folder() / "gemm" / "cuda"
    names = ("epilogue.cuh",) if problem.dtype == "float32" else ("half.cuh", "epilogue.cuh")
    texts = [(folder / name).read_text(encoding="utf-8") for name in names]
    return "\n".join([*macros(constants), *texts, SOURCE])
