"""gemm on CUDA for small matrices: all loads in flight at once, k split among the warps of a block."""

from functools import partial
from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    Config,
    Constraint,
    Kernel,
    Launch,
    Problem,
    Value,
    ceil_div,
    choice,
    powers_of_two,
)

#: Rules that leave out what is not worth trying; what breaks them is right all the same.
for_speed = partial(Constraint, for_speed=True)

#: Registers beside sums, values read together and offsets of copies: addresses, loop, what moves ahead.
OTHER_REGISTERS = 24
#: Elements of C, and k, up to which latency counts more than throughput.
C_MOST = 640 * 640
K_MOST = 1024
#: Products from which arithmetic counts, so that an operand along k may be turned by copying.
COPIED_LEAST = 200**3
#: Blocks in the second and third dimension of a grid.
GRID_MOST = 65_535


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: rows and columns."""
    return c.LANES_M * c.TM, 32 // c.LANES_M * c.TN


def _threads(c: Any) -> Any:
    return 32 * c.WARPS_K


def _grid(p: Problem, c: Any) -> tuple[Any, Any]:
    bm, bn = _tile(c)
    return ceil_div(p.n, bn), ceil_div(p.m, bm)


def _blocks(p: Problem, c: Any) -> Any:
    across, down = _grid(p, c)
    return across * down


def _lines(p: Problem) -> tuple[int, int]:
    """Elements of a stored row of A and of B."""
    a, b, _ = p.tensors
    return a.shape[1], b.shape[1]


def _along_k(p: Problem) -> tuple[int, int]:
    """1 for A and for B where neighbours in memory are neighbours in k, else 0."""
    return int(p.layout[0] == "n"), int(p.layout[1] == "t")


def _turned(c: Any) -> Any:
    """1 where operands along k are turned by copying, else 0; also of many configs at once."""
    return (c.TURN == "copy") * 1


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Tiles of all warps, or later their sums, whichever are more."""
    size, (bm, bn), (a, b), turned = DTYPE_BYTES[p.dtype], _tile(c), _along_k(p), _turned(c)
    grouped = 16 // size
    longer = (1 - turned) * (a * bm + b * bn) + turned * (a + b) * c.BK
    tiles = c.PIECES * (c.BK * (bm + bn) + grouped * longer)
    sums = bm * (bn + grouped)
    return c.WARPS_K * size * (tiles * (tiles >= sums) + sums * (tiles < sums))


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, the shorter operand's values and two of the other, offsets."""
    size, (bm, bn) = DTYPE_BYTES[p.dtype], _tile(c)
    fewer = c.TM * (c.TM <= c.TN) + c.TN * (c.TM > c.TN)
    (a, b), turned = _along_k(p), _turned(c)
    together = ((a + b > 0) * (1 - turned)) * (16 // size * (fewer + 2) - c.TM - c.TN) + c.TM + c.TN
    width_a, width_b = c.VECTOR_A - a * turned * (c.VECTOR_A - 1), c.VECTOR_B - b * turned * (c.VECTOR_B - 1)
    copies = ceil_div(bm * c.BK, width_a * 32) + ceil_div(bn * c.BK, width_b * 32)
    return size // 4 * (c.TM * c.TN + together) + copies + OTHER_REGISTERS


def _widest(p: Problem, line: int) -> int:
    """Elements of the widest copy that is aligned in rows of that length."""
    most = 16 // DTYPE_BYTES[p.dtype]
    return max(vector for vector in (1, 2, 4) if vector <= most and line % vector == 0)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=_grid(p, c), block=(_threads(c),), shared_bytes=_shared_bytes(p, c))


PARAMETERS = (
    powers_of_two("TM", 1, 8),
    powers_of_two("TN", 1, 8),
    powers_of_two("LANES_M", 2, 8),
    powers_of_two("WARPS_K", 1, 32),
    powers_of_two("BK", 4, 32),
    powers_of_two("PIECES", 1, 8),
    choice("TURN", "read", "copy"),
    choice("VECTOR_A", 1, 2, 4),
    choice("VECTOR_B", 1, 2, 4),
)


def _start(*values: int, vector: int = 4) -> dict[str, Value]:
    """A config of TM, TN, LANES_M, WARPS_K, BK and PIECES."""
    return dict(zip((each.name for each in PARAMETERS), (*values, "read", vector, vector), strict=True))


KERNEL = Kernel(
    operation="gemm",
    name="small",
    target="cuda",
    source=Path("small.cu"),
    includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("operands.cuh"), Path("total.cuh")),
    idea="for small matrices: small tiles, all loads in flight at once, k split among the warps of a block",
    parameters=PARAMETERS,
    constraints=(
        Constraint(
            "asynchronous copies need compute capability 8.0",
            lambda p, d, c: (d.compute_capability >= 80) & (c.BK > 0),
        ),
        for_speed(
            "C is small and k short",
            lambda p, d, c: (p.m * p.n <= C_MOST) & (p.k <= K_MOST) & (c.BK > 0),
        ),
        Constraint(
            "an asynchronous copy moves 16 bytes at most",
            lambda p, d, c: (
                (DTYPE_BYTES[p.dtype] * c.VECTOR_A <= 16) & (DTYPE_BYTES[p.dtype] * c.VECTOR_B <= 16)
            ),
        ),
        Constraint(
            "stored rows of A are divisible by VECTOR_A, those of B by VECTOR_B",
            lambda p, d, c: (_lines(p)[0] % c.VECTOR_A == 0) & (_lines(p)[1] % c.VECTOR_B == 0),
        ),
        for_speed(
            "copies are as wide as alignment allows",
            lambda p, d, c: (_widest(p, _lines(p)[0]) == c.VECTOR_A) & (_widest(p, _lines(p)[1]) == c.VECTOR_B),
        ),
        for_speed(
            "copies turn where there is something to turn, and arithmetic enough for registers to matter",
            lambda p, d, c: (c.TURN == "read") | (sum(_along_k(p)) > 0) & (p.m * p.n * p.k >= COPIED_LEAST),
        ),
        Constraint(
            "a copy along a side of the tile is no longer than that side",
            lambda p, d, c: (
                ((_along_k(p)[0] == 1) | (_tile(c)[0] >= c.VECTOR_A))
                & ((_along_k(p)[1] == 1) | (_tile(c)[1] >= c.VECTOR_B))
            ),
        ),
        Constraint(
            "a block has at least two warps and no more threads than the device allows",
            lambda p, d, c: (_threads(c) >= 2 * d.warp_size) & (_threads(c) <= d.max_threads_per_block),
        ),
        Constraint(
            "a grid has no more rows of tiles than a device takes", lambda p, d, c: _grid(p, c)[1] <= GRID_MOST
        ),
        for_speed(
            "the tile is no longer than C in either direction, or the smallest",
            lambda p, d, c: (
                ((p.m >= _tile(c)[0]) | (_tile(c)[0] <= 8)) & ((p.n >= _tile(c)[1]) | (_tile(c)[1] <= 8))
            ),
        ),
        Constraint(
            "offsets within a tile fit into 32 bits",
            lambda p, d, c: (
                ((_tile(c)[0] + _tile(c)[1] + c.BK) * p.m < 2**32)
                & ((_tile(c)[0] + _tile(c)[1] + c.BK) * p.n < 2**32)
                & ((_tile(c)[0] + _tile(c)[1] + c.BK) * p.k < 2**32)
            ),
        ),
        Constraint(
            "tiles of all warps, and then their sums, fit into a block's shared memory",
            lambda p, d, c: _shared_bytes(p, c) <= d.shared_bytes_per_block,
        ),
        Constraint(
            "sums, values and offsets of copies fit into the registers of a block",
            lambda p, d, c: (
                (_registers(p, c) * _threads(c) <= d.registers_per_block)
                & (_registers(p, c) <= d.registers_per_thread)
            ),
        ),
        for_speed(
            "every warp has something to do",
            lambda p, d, c: p.k > (c.WARPS_K - 1) * c.BK * c.PIECES,
        ),
        for_speed(
            "no piece is left over",
            lambda p, d, c: (c.PIECES == 1) | (p.k > c.WARPS_K * c.BK * (c.PIECES - 1)),
        ),
        for_speed(
            "warps go round at most four times",
            lambda p, d, c: p.k <= 4 * c.WARPS_K * c.BK * c.PIECES,
        ),
        for_speed(
            "no multiprocessor has more than sixteen blocks, and large tiles leave less than half of them idle",
            lambda p, d, c: (
                (_blocks(p, c) <= 16 * d.sm_count)
                & ((2 * _blocks(p, c) >= d.sm_count) | (c.TM * c.TN <= 4) | (_tile(c)[0] * _tile(c)[1] <= 256))
            ),
        ),
    ),
    launch=_launch,
    defaults=_start(4, 4, 4, 8, 16, 2),
    starts=(
        _start(2, 2, 4, 8, 8, 1),
        _start(2, 2, 4, 4, 16, 1),
        _start(2, 4, 4, 8, 16, 1),
        _start(2, 4, 8, 8, 16, 1),
        _start(4, 4, 4, 8, 16, 2),
        _start(4, 4, 4, 16, 16, 1),
        _start(4, 8, 8, 8, 16, 2),
        _start(8, 8, 8, 8, 16, 4),
        _start(8, 8, 8, 16, 16, 2),
        _start(4, 8, 8, 8, 16, 4),
        _start(4, 4, 4, 8, 8, 4, vector=2),
        _start(2, 4, 4, 8, 8, 2, vector=2),
    ),
)
