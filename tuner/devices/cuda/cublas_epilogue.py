"""What users have today for a product with an epilogue: cuBLASLt's own, and one kernel for what that leaves.

`tuner.declare.epilogue.Epilogue.in_cublas` says which part is whose. Of cuBLASLt's first eight proposals, and
cublasGemmEx where only the kernel behind it does anything, the fastest is taken, kernel included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import cupy
import numpy

from tuner.declare.epilogue import RESIDUAL, Epilogue
from tuner.declare.problem import Problem
from tuner.devices.cuda.cublas import DEFAULT_EPILOGUE, Fused, candidates, fastest, proposed
from tuner.devices.cuda.element_wise import element_wise_source
from tuner.devices.cuda.nvrtc import compile_cubin, target_architecture
from tuner.devices.protocol import LaunchFailed

#: ``cublasLtEpilogue_t`` by activation and whether there is a bias (cublasLt.h).
EPILOGUES: Mapping[tuple[str, bool], int] = {
    ("", False): DEFAULT_EPILOGUE, ("relu", False): 2, ("", True): 4, ("relu", True): 6,
    ("gelu-tanh", False): 32, ("gelu-tanh", True): 36,
}  # fmt: skip
_THREADS, _MOST_BLOCKS = 256, 4096

#: Something that queues all of a run.
Run = Callable[..., None]
_FASTEST: dict[tuple[Problem, int], Run] = {}


def choose(problem: Problem, arrays: Mapping[str, Any]) -> None:
    """Times all candidates on the arrays, once for a problem and device; the output is written.

    Raises:
        LaunchFailed: None of them computes it.
    """
    key = problem, cupy.cuda.runtime.getDevice()
    if key not in _FASTEST:
        _FASTEST[key] = fastest(_runs(problem), _addresses(problem, arrays))


def best_product(problem: Problem, arrays: Mapping[str, Any]) -> None:
    """Queues a run of the one that `choose` found, or of the first that there is.

    Raises:
        LaunchFailed: The library fails.
    """
    found = _FASTEST.get((problem, cupy.cuda.runtime.getDevice()))
    if found is None:
        found = next(iter(_runs(problem).values()), None)
    if found is None:
        raise LaunchFailed("neither cublasGemmEx nor cuBLASLt computes the product")
    found(*_addresses(problem, arrays))


def _addresses(problem: Problem, arrays: Mapping[str, Any]) -> tuple[int, ...]:
    """Of B, A, C, then what cuBLASLt adds, the bias, and the residual; 0 for what there is not."""
    names = ("b", "a", "c", "c_in", "bias", RESIDUAL)
    return tuple(arrays[name].data.ptr if name in arrays else 0 for name in names)


def _runs(problem: Problem) -> dict[str, Run]:
    """All candidates by name."""
    epilogue = Epilogue.read(problem.epilogue)
    fused, rest = epilogue.in_cublas
    values = {scalar.name: scalar.value for scalar in problem.scalars if scalar.given}
    told = Fused(
        EPILOGUES[fused.activation, bool(fused.bias)],
        values.get("alpha", 1.0),
        1.0 if fused.residual else values.get("beta", 0.0),
        bool(fused.bias),
    )
    behind = _element_wise(problem, rest) if rest else None
    found = {f"cublasLtMatmul {place}": each for place, each in enumerate(proposed(problem, told))}
    if not fused and problem.dtype != "float32":
        found |= {"cublasGemmEx": candidates(problem)["cublasGemmEx"]}
    return {name: partial(_run, each, behind, fused) for name, each in found.items()}


def _run(product: Run, behind: Run | None, fused: Epilogue, *addresses: int) -> None:
    """The product, then the kernel behind it."""
    b, a, c, c_in, bias, residual = addresses
    if fused.residual or fused.beta or fused.bias:
        product(b, a, c, residual if fused.residual else c_in, bias)
    else:
        product(b, a, c)
    if behind is not None:
        behind(c, bias, residual)


def _element_wise(problem: Problem, rest: Epilogue) -> Run:
    """A kernel that finishes C in place."""
    elements, index = problem.m * problem.n, cupy.cuda.runtime.getDevice()
    grid, block = (min(-(-elements // _THREADS), _MOST_BLOCKS), 1, 1), (_THREADS, 1, 1)
    function = _compiled(element_wise_source(problem, rest), index)
    sizes = numpy.int64(elements), numpy.int32(problem.n)

    def run(c: int, bias: int, residual: int) -> None:
        operands = (*((bias,) if rest.bias else ()), *((residual,) if rest.residual else ()))
        function(grid, block, (c, *operands, *sizes), 0)

    return run


@cache
def _compiled(source: str, device: int) -> Any:
    """The kernel on a device."""
    capability = int(cupy.cuda.Device(device).compute_capability)
    module = cupy.cuda.function.Module()
    module.load(compile_cubin(source, target_architecture(capability))[0])
    return module.get_function("finish")
