"""gemm on CUDA: tiles in shared memory, a piece of C in every thread's registers, the next tile prefetched."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, ceil_div, choice

#: Registers beside sums, fragments and the tile in flight: addresses, loop, what the compiler moves ahead.
OTHER_REGISTERS = 20


def _threads(c: Any) -> Any:
    return (c.BM // c.TM) * (c.BN // c.TN)


def _skew(along_k: bool, c: Any, grouped: int) -> Any:
    """Elements between the rows of two packs in shared memory, as in the source."""
    lanes = c.BK // c.VECTOR
    wanted = 32 // lanes
    return along_k * (wanted * (wanted > grouped) + grouped * (wanted <= grouped))


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Two stages of a tile of A and a tile of B."""
    size = DTYPE_BYTES[p.dtype]
    along_k = (p.layout[0] == "n") + (p.layout[1] == "t")
    skewed = _skew(True, c, 16 // size) * (c.BK // c.VECTOR) * along_k
    return 2 * size * (c.BK * (c.BM + c.BN) + skewed)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, two fragments, a tile in flight with its addresses."""
    words = DTYPE_BYTES[p.dtype] // 4
    in_flight = ceil_div(c.BM * c.BK, _threads(c)) + ceil_div(c.BN * c.BK, _threads(c))
    values = c.TM * c.TN + 2 * (c.TM + c.TN) + in_flight
    return words * values + 2 * ceil_div(in_flight, c.VECTOR) + OTHER_REGISTERS


def _register_limit(d: Any, c: Any) -> Any:
    return d.registers_left(_threads(c), c.BLOCKS_PER_SM)


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)
    return Launch(grid=(blocks,), block=(_threads(c),), shared_bytes=_shared_bytes(p, c))


KERNEL = Kernel(
    operation="gemm",
    name="register_tiled",
    target="cuda",
    source=Path("register_tiled.cu"),
    includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("tiles.cuh")),
    idea="tiles in shared memory, TM x TN elements of C in a thread's registers, the next tile prefetched",
    parameters=(
        choice("BM", 32, 64, 96, 128, 192, 256),
        choice("BN", 32, 64, 96, 128, 192, 256),
        choice("BK", 8, 16, 32),
        choice("TM", 4, 8, 12, 16),
        choice("TN", 4, 8, 12, 16),
        choice("LANES_M", 4, 8),
        choice("VECTOR", 1, 2, 4),
        choice("SWATH", 1, 8, 16),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        Constraint(
            "a block's tile is made of whole warp tiles of LANES_M * TM by 32 / LANES_M * TN",
            lambda p, d, c: (c.BM % (c.LANES_M * c.TM) == 0) & (c.BN % (32 // c.LANES_M * c.TN) == 0),
        ),
        Constraint(
            "a block has at least two warps and no more threads than the device allows",
            lambda p, d, c: (_threads(c) >= 2 * d.warp_size) & (_threads(c) <= d.max_threads_per_block),
        ),
        Constraint(
            "every thread loads the same number of VECTOR-wide pieces of both tiles",
            lambda p, d, c: (
                (c.BM * c.BK % (c.VECTOR * _threads(c)) == 0) & (c.BN * c.BK % (c.VECTOR * _threads(c)) == 0)
            ),
        ),
        Constraint(
            "the rows of A and B are divisible by VECTOR, so that wide reads are aligned",
            lambda p, d, c: sum(each.shape[1] % c.VECTOR for each in p.inputs) == 0,
        ),
        Constraint(
            "the tile is less than twice as long as C in either direction, or the smallest",
            lambda p, d, c: ((2 * p.m > c.BM) | (c.BM == 32)) & ((2 * p.n > c.BN) | (c.BN == 32)),
            for_speed=True,
        ),
        Constraint(
            "two stages of both tiles fit into the shared memory that a block may have",
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
            "sums, fragments and the tile in flight fit into the registers that BLOCKS_PER_SM blocks leave",
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
        "BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8,
        "LANES_M": 4, "VECTOR": 4, "SWATH": 8, "BLOCKS_PER_SM": 2,
    },
)  # fmt: skip
