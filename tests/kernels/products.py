"""Products as problems, and the kernels for them."""

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem

CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
LAYOUTS = GEMM.layouts


def gemm(
    m: int, n: int, k: int, layout: str = "nn", dtype: str = "", precision: str = "", epilogue: str = ""
) -> Problem:
    """A product of m x k by k x n."""
    return GEMM.problem({"m": m, "n": n, "k": k}, dtype, layout, precision, epilogue)


def kernel_of(name: str, operation: str = "gemm", target: str = "cuda") -> Kernel:
    """A built-in kernel."""
    (kernel,) = CATALOGUE.of(operation, target, (name,))
    return kernel
