"""gemm without edges, as a user's own kernel: how many configs a minute brings.

tuner tune scripts/bench/kernels/simt.py --set m=2048 --set n=2048 --set k=2048 --seconds 60
"""

# ruff: noqa: SIM300
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner import Config, Constraint, Kernel, Launch, Operation, Problem, Source, Tensor, Work, choice


def tensors(p: Problem) -> tuple[Tensor, ...]:
    """a (m x k), b (k x n), c (m x n)."""
    return (
        Tensor("a", (p.m, p.k), p.dtype),
        Tensor("b", (p.k, p.n), p.dtype),
        Tensor("c", (p.m, p.n), p.dtype, output=True),
    )


def work(p: Problem) -> Work:
    """A product and a sum for each m, n, k; every array moves once."""
    return Work(flops=2.0 * p.m * p.n * p.k, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    """The product in float64."""
    return xp.matmul(arrays["a"].astype(xp.float64), arrays["b"].astype(xp.float64))


def threads(c: Any) -> Any:
    """Threads of a block."""
    return (c.BM // (c.LM * c.TM)) * (c.BN // (c.LN * c.TN)) * 32


def shared_bytes(c: Any) -> Any:
    """Two buffers of both tiles."""
    return 2 * 4 * c.BK * (c.BM + c.PADA + c.BN)


def launch(p: Problem, c: Config) -> Launch:
    """A block for each tile of c."""
    return Launch(grid=(p.m // c.BM * (p.n // c.BN),), block=(threads(c),))


OPERATION = Operation(
    name="gemm_even", dims=("m", "n", "k"), tensors=tensors, work=work, reference=reference,
    terms=lambda p: p.k,
)  # fmt: skip

KERNEL = Kernel(
    operation="gemm_even",
    name="simt",
    target="cuda",
    source=Source(Path("simt.cu")),
    idea="warp tiles, the next tile held in registers, two shared buffers; no edges",
    parameters=(
        choice("BM", 32, 64, 128, 256),
        choice("BN", 32, 64, 128, 256),
        choice("BK", 8, 16, 32),
        choice("TM", 4, 8, 16),
        choice("TN", 4, 8, 16),
        choice("LM", 2, 4, 8, 16),
        choice("LN", 2, 4, 8, 16),
        choice("GROUP", 1, 4, 8, 16),
        choice("PADA", 0, 4),
    ),
    constraints=(
        Constraint("a warp has 32 lanes", lambda p, d, c: c.LM * c.LN == d.warp_size),
        Constraint(
            "blocks are made of whole warps",
            lambda p, d, c: (c.BM % (c.LM * c.TM) == 0) & (c.BN % (c.LN * c.TN) == 0),
        ),
        Constraint(
            "a block has at most the device's threads", lambda p, d, c: threads(c) <= d.max_threads_per_block
        ),
        Constraint(
            "every thread fetches the same number of quads of either tile",
            lambda p, d, c: (c.BM * c.BK % (4 * threads(c)) == 0) & (c.BN * c.BK % (4 * threads(c)) == 0),
        ),
        Constraint(
            "the problem is made of whole tiles",
            lambda p, d, c: (p.m % c.BM == 0) & (p.n % c.BN == 0) & (p.k % c.BK == 0),
        ),
        Constraint(
            "both tiles, twice, fit into 48 KiB of static shared memory",
            lambda p, d, c: shared_bytes(c) <= 49152,
        ),
        Constraint(
            "sums and fragments fit into a thread's registers",
            lambda p, d, c: c.TM * c.TN + c.TM + c.TN <= d.registers_per_thread,
        ),
    ),
    launch=launch,
    starts=({"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "LM": 4, "LN": 8, "GROUP": 8, "PADA": 4},),
)
