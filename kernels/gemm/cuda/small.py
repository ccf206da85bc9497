"""gemm on CUDA for small matrices: all loads in flight at once, k split among the warps of a block."""

from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    Config,
    Constraint,
    Kernel,
    Launch,
    Problem,
    Source,
    Value,
    ceil_div,
    choice,
    powers_of_two,
)
from tuner.declare.rules import (
    asynchronous_copies,
    block_registers_fit,
    copy_at_most_16_bytes,
    for_speed,
    larger,
    shared_fits,
    threads_fit,
)

from ._operands import (
    a_and_b,
    aligned_lines,
    along_k,
    grouped,
    lines,
    operand_registers,
    tile_elements,
    turning_counts,
    widest_copies,
)
from ._rules import offsets_fit_32_bits

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


def _threads(p: Problem, c: Any) -> Any:
    return 32 * c.WARPS_K


def _grid(p: Problem, c: Any) -> tuple[Any, Any]:
    bm, bn = _tile(c)
    return ceil_div(p.n, bn), ceil_div(p.m, bm)


def _blocks(p: Problem, c: Any) -> Any:
    across, down = _grid(p, c)
    return across * down


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Tiles of all warps, or later their sums, whichever are more."""
    bm, bn = _tile(c)
    tiles = c.PIECES * tile_elements(p, c, a_and_b(p, c, _tile(c)))
    return c.WARPS_K * DTYPE_BYTES[p.dtype] * larger(tiles, bm * (bn + grouped(p)))


def _registers(p: Problem, c: Any) -> Any:
    return operand_registers(p, c, a_and_b(p, c, _tile(c)), 32, c.TM * c.TN) + OTHER_REGISTERS


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=_grid(p, c), block=(_threads(p, c),), shared_bytes=_shared_bytes(p, c))


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
    source=Source(
        Path("small.cu"),
        includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("operands.cuh"), Path("total.cuh")),
    ),
    idea="for small matrices: small tiles, all loads in flight at once, k split among the warps of a block",
    parameters=PARAMETERS,
    constraints=(
        asynchronous_copies("PIECES"),
        for_speed("C is small and k short", lambda p, d, c: (p.m * p.n <= C_MOST) & (p.k <= K_MOST)),
        copy_at_most_16_bytes("VECTOR_A", "VECTOR_B"),
        aligned_lines(),
        widest_copies("A", "VECTOR_A", lambda p, c: lines(p)[0]),
        widest_copies("B", "VECTOR_B", lambda p, c: lines(p)[1]),
        turning_counts(lambda p, c: p.m * p.n * p.k >= COPIED_LEAST),
        Constraint(
            "a copy along a side of the tile is no longer than that side",
            lambda p, d, c: (
                ((along_k(p)[0] == 1) | (_tile(c)[0] >= c.VECTOR_A))
                & ((along_k(p)[1] == 1) | (_tile(c)[1] >= c.VECTOR_B))
            ),
        ),
        threads_fit(_threads, least_warps=2),
        Constraint(
            "a grid has no more rows of tiles than a device takes", lambda p, d, c: _grid(p, c)[1] <= GRID_MOST
        ),
        for_speed(
            "the tile is no longer than C in either direction, or the smallest",
            lambda p, d, c: (
                ((p.m >= _tile(c)[0]) | (_tile(c)[0] <= 8)) & ((p.n >= _tile(c)[1]) | (_tile(c)[1] <= 8))
            ),
        ),
        offsets_fit_32_bits(lambda p, c: sum(_tile(c)) + c.BK, "m", "n", "k"),
        shared_fits("tiles of all warps, and then their sums,", _shared_bytes),
        block_registers_fit("sums, values and offsets of copies", _registers, _threads),
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
    tiles=lambda p, c: dict(zip(("m", "n"), _tile(c), strict=True)),
    starts=(
        _start(4, 4, 4, 8, 16, 2),
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
