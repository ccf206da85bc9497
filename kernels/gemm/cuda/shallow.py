"""gemm on CUDA for small k: C is written at the speed of memory while the next tile's operands come in."""

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
OTHER_REGISTERS = 20
#: k up to which C's writing counts.
SHALLOW_MOST = 256
#: k from which arithmetic takes as long as writing.
ORDERED_LEAST = 32
#: Blocks at the most: multiprocessors of the largest devices, times BLOCKS_PER_SM.
MOST_BLOCKS = 640
#: Elements of C below which there is too little to write for its speed to matter.
C_LEAST = 1 << 20


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: rows and columns."""
    return c.WARPS_M * c.LANES_M * c.TM, c.WARPS_N * (32 // c.LANES_M) * c.TN


def _threads(c: Any) -> Any:
    return 32 * c.WARPS_M * c.WARPS_N


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles of C."""
    bm, bn = _tile(c)
    return ceil_div(p.m, bm) * ceil_div(p.n, bn)


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
    size, (bm, bn), (a, b), turned = DTYPE_BYTES[p.dtype], _tile(c), _along_k(p), _turned(c)
    longer = (1 - turned) * (a * bm + b * bn) + turned * (a + b) * c.BK
    return c.STAGES * size * (c.BK * (bm + bn) + 16 // size * longer)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, the shorter operand's values and two of the other, offsets."""
    size, (bm, bn) = DTYPE_BYTES[p.dtype], _tile(c)
    fewer = c.TM * (c.TM <= c.TN) + c.TN * (c.TM > c.TN)
    (a, b), turned = _along_k(p), _turned(c)
    together = ((a + b > 0) * (1 - turned)) * (16 // size * (fewer + 2) - c.TM - c.TN) + c.TM + c.TN
    width_a, width_b = (
        vector - a_or_b * turned * (vector - 1) for vector, a_or_b in ((c.VECTOR_A, a), (c.VECTOR_B, b))
    )
    copies = ceil_div(bm * c.BK, width_a * _threads(c)) + ceil_div(bn * c.BK, width_b * _threads(c))
    return size // 4 * (c.TM * c.TN + together) + copies + OTHER_REGISTERS


def _register_limit(d: Any, c: Any) -> Any:
    return d.registers_left(_threads(c), c.BLOCKS_PER_SM)


def _widest(p: Problem, line: int) -> int:
    """Elements of the widest copy that is aligned in rows of that length."""
    most = 16 // DTYPE_BYTES[p.dtype]
    return max(vector for vector in (1, 2, 4) if vector <= most and line % vector == 0)


def _launch(p: Problem, c: Config) -> Launch:
    tiles = _tiles(p, c)
    return Launch(grid=(min(c.BLOCKS or tiles, tiles),), block=(_threads(c),), shared_bytes=_shared_bytes(p, c))


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
    source=Path("shallow.cu"),
    includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("operands.cuh")),
    idea="for small k: a block goes through tiles of C, which it writes while the next one's operands come in",
    parameters=PARAMETERS,
    constraints=(
        Constraint(
            "asynchronous copies need compute capability 8.0",
            lambda p, d, c: (d.compute_capability >= 80) & (c.STAGES > 0),
        ),
        for_speed(
            "BLOCKS is what the device runs at once, or 0 for a block for each tile",
            lambda p, d, c: (c.BLOCKS == 0) | (d.sm_count * c.BLOCKS_PER_SM == c.BLOCKS),
        ),
        for_speed(
            "k is small and C large",
            lambda p, d, c: (p.k <= SHALLOW_MOST) & (p.m * p.n >= C_LEAST) & (c.STAGES > 0),
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
            "the order of products is of interest where arithmetic counts",
            lambda p, d, c: (c.ORDER == "rows") | (p.k >= ORDERED_LEAST),
        ),
        for_speed(
            "copies turn where there is something to turn",
            lambda p, d, c: (c.TURN == "read") | (sum(_along_k(p)) > 0),
        ),
        Constraint(
            "a thread has at most 128 registers of sums",
            lambda p, d, c: c.TM * c.TN * DTYPE_BYTES[p.dtype] <= 512,
        ),
        Constraint(
            "a block has at least two warps and no more threads than the device allows",
            lambda p, d, c: (_threads(c) >= 2 * d.warp_size) & (_threads(c) <= d.max_threads_per_block),
        ),
        for_speed(
            "blocks that stay have at least two tiles each",
            lambda p, d, c: _tiles(p, c) >= 2 * c.BLOCKS,
        ),
        for_speed(
            "the tile is less than twice as long as C in either direction, or the smallest",
            lambda p, d, c: (
                ((2 * p.m > _tile(c)[0]) | (_tile(c)[0] <= 32))
                & ((2 * p.n > _tile(c)[1]) | (_tile(c)[1] <= 32))
            ),
        ),
        for_speed(
            "a tile is no deeper than k, or the least deep, and k fills three quarters of its tiles",
            lambda p, d, c: (c.BK == 8) | (4 * p.k >= 3 * c.BK * ceil_div(p.k, c.BK)),
        ),
        for_speed(
            "a thread has at least 32 elements of C, so that shared memory keeps up with arithmetic",
            lambda p, d, c: c.TM * c.TN >= 32,
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
            "STAGES tiles of both operands fit into a block's shared memory",
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
            "sums, values and offsets of copies fit into the registers that BLOCKS_PER_SM blocks leave",
            lambda p, d, c: (
                (_registers(p, c) <= _register_limit(d, c)) & (_registers(p, c) <= d.registers_per_thread)
            ),
        ),
        for_speed(
            "BLOCKS_PER_SM above 1 lowers the register limit, else it changes nothing",
            lambda p, d, c: (c.BLOCKS_PER_SM == 1) | (_register_limit(d, c) < d.registers_per_thread),
        ),
        for_speed(
            "a multiprocessor has at least eight warps",
            lambda p, d, c: _threads(c) * c.BLOCKS_PER_SM >= 8 * d.warp_size,
        ),
    ),
    launch=_launch,
    defaults=_start(8, 8, 4, 2, 2, 16, 2, 3, 0),
    starts=(
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
