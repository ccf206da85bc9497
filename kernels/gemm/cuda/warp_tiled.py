"""gemm on CUDA: as register_tiled, with STAGES tiles in shared memory and asynchronous copies."""

from pathlib import Path
from typing import Any

from tuner.kernel import Kernel, Launch, ceil_div
from tuner.problem import DTYPE_BYTES, Problem
from tuner.space import Config, Constraint, choice

#: Registers beside sums, fragments and the tile in flight: addresses, loop, what the compiler moves ahead.
OTHER_REGISTERS = 20
#: Registers are handed out in eights per thread, and evenly to the four schedulers of a multiprocessor, which
#: share its warps (CUDA's occupancy calculator: register and warp allocation granularity).
REGISTER_STEP = 8
SCHEDULERS = 4


def _threads(c: Any) -> Any:
    return (c.BM // c.TM) * (c.BN // c.TN)


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES stages of a tile of A and a tile of B; a transposed one has rows 16 bytes longer."""
    size = DTYPE_BYTES[p.dtype]
    transposed = (p.layout[0] == "n") + (p.layout[1] == "t")
    return c.STAGES * c.BK * (size * (c.BM + c.BN) + 16 * transposed)


def _copies(p: Problem, c: Any) -> tuple[Any, Any]:
    """Copies per tile of A and of B: VECTOR elements each, or one where copying transposes."""
    a = c.BM * c.BK // (1 if p.layout[0] == "n" else c.VECTOR)
    b = c.BN * c.BK // (1 if p.layout[1] == "t" else c.VECTOR)
    return a, b


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, two fragments, the addresses of its copies."""
    words = DTYPE_BYTES[p.dtype] // 4
    return words * (c.TM * c.TN + 2 * (c.TM + c.TN)) + 2 * sum(_copies(p, c)) // _threads(c) + OTHER_REGISTERS


def _register_limit(d: Any, c: Any) -> Any:
    """Registers that BLOCKS_PER_SM blocks leave to a thread."""
    warps = ceil_div(_threads(c), d.warp_size) * c.BLOCKS_PER_SM
    slots = ceil_div(warps, SCHEDULERS) * SCHEDULERS * d.warp_size
    return d.registers_per_block // slots // REGISTER_STEP * REGISTER_STEP


def _leading_dims(p: Problem) -> tuple[int, int, int]:
    a, b, c = p.tensors
    return a.shape[1], b.shape[1], c.shape[1]


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)
    return Launch(grid=(blocks,), block=(_threads(c),), shared_bytes=_shared_bytes(p, c))


KERNEL = Kernel(
    operation="gemm",
    name="warp_tiled",
    target="cuda",
    source=Path("warp_tiled.cu"),
    idea="register_tiled with asynchronous copies, several tiles ahead",
    parameters=(
        choice("BM", 32, 64, 96, 128, 192, 256),
        choice("BN", 32, 64, 96, 128, 192, 256),
        choice("BK", 8, 16, 32),
        choice("TM", 4, 8, 12, 16),
        choice("TN", 4, 8, 12, 16),
        choice("LANES_M", 4, 8),
        choice("STAGES", 2, 3, 4, 5),
        choice("VECTOR", 1, 2, 4),
        choice("SWATH", 1, 8, 16),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        Constraint(
            "an asynchronous copy moves 16 bytes at most", lambda p, d, c: DTYPE_BYTES[p.dtype] * c.VECTOR <= 16
        ),
        Constraint(
            "asynchronous copies need compute capability 8.0",
            lambda p, d, c: (d.compute_capability >= 80) & (c.STAGES > 0),
        ),
        Constraint(
            "a block's tile is made of whole warp tiles of LANES_M * TM by 32 / LANES_M * TN",
            lambda p, d, c: (c.BM % (c.LANES_M * c.TM) == 0) & (c.BN % (32 // c.LANES_M * c.TN) == 0),
        ),
        Constraint(
            "a block has at least two warps and no more threads than the device allows",
            lambda p, d, c: (_threads(c) >= 2 * d.warp_size) & (_threads(c) <= d.max_threads_per_block),
        ),
        Constraint(
            "every thread makes the same number of copies of both tiles",
            lambda p, d, c: (_copies(p, c)[0] % _threads(c) == 0) & (_copies(p, c)[1] % _threads(c) == 0),
        ),
        Constraint(
            "every leading dimension is divisible by VECTOR, so that wide accesses are aligned",
            lambda p, d, c: sum(size % c.VECTOR for size in _leading_dims(p)) == 0,
        ),
        Constraint(
            "the tile is less than twice as long as C in either direction, or the smallest",
            lambda p, d, c: ((2 * p.m > c.BM) | (c.BM == 32)) & ((2 * p.n > c.BN) | (c.BN == 32)),
            for_speed=True,
        ),
        Constraint(
            "STAGES stages of both tiles fit into the shared memory that a block may have",
            lambda p, d, c: _shared_bytes(p, c) <= d.shared_bytes_per_block,
        ),
        Constraint(
            "BLOCKS_PER_SM blocks fit into a multiprocessor's threads and shared memory",
            lambda p, d, c: (
                (_threads(c) * c.BLOCKS_PER_SM <= d.max_threads_per_sm)
                & (
                    (_shared_bytes(p, c) + d.shared_bytes_per_sm - d.shared_bytes_per_block) * c.BLOCKS_PER_SM
                    <= d.shared_bytes_per_sm
                )
            ),
        ),
        Constraint(
            "sums, fragments and addresses of copies fit into the registers that BLOCKS_PER_SM blocks leave",
            lambda p, d, c: (
                (_registers(p, c) <= _register_limit(d, c)) & (_registers(p, c) <= d.registers_per_thread)
            ),
        ),
        Constraint(
            "BLOCKS_PER_SM above 1 lowers the register limit, else it changes nothing",
            lambda p, d, c: (c.BLOCKS_PER_SM == 1) | (_register_limit(d, c) < d.registers_per_thread),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={
        "BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8,
        "LANES_M": 8, "STAGES": 3, "VECTOR": 4, "SWATH": 8, "BLOCKS_PER_SM": 1,
    },
)  # fmt: skip
