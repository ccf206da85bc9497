"""gemm on CUDA for small k: C is written at the speed of memory while the next tile's operands are loaded."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Kernel, Launch, Problem, Source, Value, ceil_div, choice, powers_of_two
from tuner.declare.rules import (
    asynchronous_copies,
    blocks_fit,
    copy_at_most_16_bytes,
    for_speed,
    registers_fit,
    shared_fits,
    threads_fit,
)

from ._operands import (
    MOST_BLOCKS,
    a_and_b,
    aligned_lines,
    lines,
    operand_registers,
    order_counts,
    sums_fit,
    tile_elements,
    tile_within_c,
    turning_counts,
    widest_copies,
)
from ._rules import blocks_run_at_once, enough_warps, offsets_fit_32_bits, residency_limits_registers

#: Registers beside sums, values read together and offsets of copies: addresses, loop, what moves ahead.
OTHER_REGISTERS = 20
#: k up to which C's writing counts.
SHALLOW_MOST = 256
#: k from which arithmetic takes as long as writing.
ORDERED_LEAST = 32
#: Elements of C below which there is too little to write for its speed to matter.
C_LEAST = 1 << 20


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: rows and columns."""
    return c.WARPS_M * c.LANES_M * c.TM, c.WARPS_N * (32 // c.LANES_M) * c.TN


def _threads(p: Problem, c: Any) -> Any:
    return 32 * c.WARPS_M * c.WARPS_N


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles of C."""
    bm, bn = _tile(c)
    return ceil_div(p.m, bm) * ceil_div(p.n, bn)


def _shared_bytes(p: Problem, c: Any) -> Any:
    return c.STAGES * DTYPE_BYTES[p.dtype] * tile_elements(p, c, a_and_b(p, c, _tile(c)))


def _registers(p: Problem, c: Any) -> Any:
    return operand_registers(p, c, a_and_b(p, c, _tile(c)), _threads(p, c), c.TM * c.TN) + OTHER_REGISTERS


def _launch(p: Problem, c: Config) -> Launch:
    tiles = _tiles(p, c)
    blocks = min(c.BLOCKS or tiles, tiles)
    return Launch(grid=(blocks,), block=(_threads(p, c),), shared_bytes=_shared_bytes(p, c))


def _start(*values: int, turn: str = "read", vector: int = 4) -> dict[str, Value]:
    """A config of TM, TN, LANES_M, WARPS_M, WARPS_N, BK, STAGES, BLOCKS_PER_SM and BLOCKS."""
    names = ("TM", "TN", "LANES_M", "WARPS_M", "WARPS_N", "BK", "STAGES", "BLOCKS_PER_SM", "BLOCKS")
    others: dict[str, Value] = {
        "VECTOR_A": vector,
        "VECTOR_B": vector,
        "STREAM": 1,
        "ORDER": "rows",
        "TURN": turn,
    }
    chosen = others | dict(zip(names, values, strict=True))
    return {each.name: chosen[each.name] for each in PARAMETERS}


PARAMETERS = (
    choice("TM", 4, 8, 16),
    choice("TN", 4, 8, 16),
    choice("LANES_M", 2, 4, 8),
    powers_of_two("WARPS_M", 1, 8),
    powers_of_two("WARPS_N", 1, 8),
    choice("BK", 8, 16, 32),
    choice("STAGES", 2, 3, 4),
    choice("BLOCKS", 0, *range(2, MOST_BLOCKS + 1, 2)),
    choice("TURN", "read", "copy"),
    choice("ORDER", "rows", "snake"),
    choice("VECTOR_A", 1, 2, 4),
    choice("VECTOR_B", 1, 2, 4),
    choice("STREAM", 0, 1),
    choice("BLOCKS_PER_SM", 1, 2, 3, 4),
)

KERNEL = Kernel(
    operation="gemm",
    name="shallow",
    target="cuda",
    source=Source(
        Path("shallow.cu"),
        includes=(Path("../../access.cuh"), Path("copies.cuh"), Path("lanes.cuh"), Path("operands.cuh")),
    ),
    idea="for small k: a block goes through tiles of C, and writes one while the next one's operands load",
    parameters=PARAMETERS,
    constraints=(
        asynchronous_copies("STAGES"),
        blocks_run_at_once(),
        for_speed(
            "k is small and C large",
            lambda p, d, c: (p.k <= SHALLOW_MOST) & (p.m * p.n >= C_LEAST),
        ),
        copy_at_most_16_bytes("VECTOR_A", "VECTOR_B"),
        aligned_lines(),
        widest_copies("A", "VECTOR_A", lambda p, c: lines(p)[0]),
        widest_copies("B", "VECTOR_B", lambda p, c: lines(p)[1]),
        order_counts(lambda p, c: p.k >= ORDERED_LEAST),
        turning_counts(),
        sums_fit(lambda p, c: c.TM * c.TN),
        threads_fit(_threads, least_warps=2),
        for_speed(
            "blocks that stay have at least two tiles each",
            lambda p, d, c: _tiles(p, c) >= 2 * c.BLOCKS,
        ),
        tile_within_c(_tile),
        for_speed(
            "a tile is no deeper than k, or the least deep, and k fills three quarters of its tiles",
            lambda p, d, c: (c.BK == 8) | (4 * p.k >= 3 * c.BK * ceil_div(p.k, c.BK)),
        ),
        for_speed(
            "a thread has at least 32 elements of C, so that shared memory keeps up with arithmetic",
            lambda p, d, c: c.TM * c.TN >= 32,
        ),
        offsets_fit_32_bits(lambda p, c: sum(_tile(c)) + c.BK, "m", "n", "k"),
        shared_fits("STAGES tiles of both operands", _shared_bytes),
        blocks_fit(_threads, _shared_bytes),
        registers_fit("sums, values and offsets of copies", _registers, _threads),
        residency_limits_registers(_threads),
        enough_warps(_threads, 8),
    ),
    launch=_launch,
    tiles=lambda p, c: dict(zip(("m", "n"), _tile(c), strict=True)),
    starts=(
        _start(8, 8, 4, 2, 2, 16, 2, 3, 0),
        _start(8, 8, 4, 4, 2, 16, 3, 2, 264),
        _start(8, 8, 4, 4, 2, 32, 2, 2, 264),
        _start(8, 8, 4, 2, 2, 16, 3, 3, 396),
        _start(4, 8, 4, 4, 2, 16, 3, 3, 396),
        _start(8, 16, 8, 2, 4, 16, 3, 1, 132),
        _start(8, 16, 8, 2, 4, 16, 3, 1, 132, turn="copy"),
        _start(8, 8, 4, 4, 2, 16, 3, 2, 264, turn="copy"),
        _start(4, 8, 4, 4, 2, 16, 2, 2, 0, vector=2),
        _start(8, 16, 8, 2, 4, 32, 2, 1, 132),
    ),
)
