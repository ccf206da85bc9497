"""bmm on CUDA for small matrices: several products a block, each with threads of its own."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Kernel, Launch, Problem, Scope, Source, choice, powers_of_two
from tuner.declare.rules import (
    below_multiple,
    block_registers_fit,
    copy_at_most_16_bytes,
    static_shared_fits,
    threads_fit,
    whole_accesses,
)

from ._stacks import blocks, few_blocks, fitting_tiles, threads, tiles

#: Registers beside sums and their factors: addresses, loop, elements on their way.
OTHER_REGISTERS = 32


def _sum_words(p: Problem) -> int:
    """Registers of a sum: elements of 16 bits are added up in float32."""
    return DTYPE_BYTES[p.operation.sums.get(p.dtype, p.dtype)] // 4


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Tiles of all A and B, each row an element longer against bank conflicts."""
    return 4 * _sum_words(p) * c.MATRICES * c.BK * (c.BM + c.BN + 2)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(blocks(p, c),), block=(threads(p, c),))


def _start(bm: int, bn: int, bk: int, tm: int, tn: int, matrices: int, vector: int) -> dict[str, int]:
    return {"BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn, "MATRICES": matrices, "VECTOR": vector}


KERNEL = Kernel(
    operation="bmm",
    name="small_matrices",
    target="cuda",
    source=Source(
        Path("small_matrices.cu"),
        includes=(
            Path("../../access.cuh"), Path("../../gemm/cuda/half.cuh"), Path("../../gemm/cuda/stored.cuh"),
            Path("products.cuh"),
        ),
    ),
    idea="several small products a block, tiles of all in shared memory, TM x TN sums in a thread's registers",
    scope=Scope(dtypes=("float32", "float64", "float16", "bfloat16")),
    parameters=(
        choice("BM", 8, 16, 24, 32, 48, 64, 128),
        choice("BN", 8, 16, 24, 32, 48, 64, 128),
        choice("BK", 8, 16, 32, 64),
        powers_of_two("TM", 1, 8),
        powers_of_two("TN", 1, 8),
        powers_of_two("MATRICES", 1, 32),
        powers_of_two("VECTOR", 1, 8),
    ),
    constraints=(
        threads_fit(threads, least_warps=1),
        static_shared_fits("tiles of all A and B", _shared_bytes),
        copy_at_most_16_bytes("VECTOR"),
        whole_accesses(),
        few_blocks(),
        block_registers_fit(
            "sums and their factors",
            lambda p, c: _sum_words(p) * (c.TM * c.TN + c.TM + c.TN) + OTHER_REGISTERS, threads,
        ),
        *fitting_tiles(8),
        below_multiple("a step is less than twice as long as K", lambda p, c: c.BK, 8, lambda p, c: p.k),
    ),
    launch=_launch,
    tiles=tiles,
    starts=(
        _start(32, 32, 16, 4, 2, 2, 1), _start(32, 32, 32, 4, 4, 4, 4), _start(32, 32, 32, 8, 4, 4, 4),
        _start(16, 16, 16, 2, 4, 8, 4), _start(8, 8, 8, 1, 2, 8, 4), _start(64, 64, 16, 4, 4, 1, 4),
        _start(64, 64, 16, 4, 8, 1, 4), _start(64, 64, 16, 8, 8, 1, 8), _start(64, 64, 16, 4, 4, 1, 1),
    ),
)  # fmt: skip
