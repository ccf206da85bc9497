"""gemm on CUDA for a thin C: the large operand is read once, K is split among warps and blocks."""

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
    Workspace,
    ceil_div,
    choice,
    powers_of_two,
)

#: Rules that leave out what is not worth trying; what breaks them is right all the same.
for_speed = partial(Constraint, for_speed=True)

#: Registers beside sums, values read together and offsets of copies: addresses, loop, what moves ahead.
OTHER_REGISTERS = 28
#: C is thin up to this.
THIN_MOST = 128
#: Elements of the wide operand below which there is too little to read for its speed to matter.
WIDE_LEAST = 1 << 20
#: Bytes on their way that a multiprocessor needs to read at nearly full speed; fewer are not worth a trial.
IN_FLIGHT_LEAST = 16 << 10
#: C's thin side from which arithmetic counts, so that an operand along k may be turned by copying.
COPIED_LEAST = 16
#: Sums of a thread with which a value read from shared memory serves enough products, for any breadth of C.
SUMS_ENOUGH = 64
#: Sums of a thread up to which those of a tile are kept apart, so that fewer products are summed in one chain.
TWICE_MOST = 8
#: Products in one chain whose rounding is no worse than a library's.
CHAIN_MOST = 1024
#: A workspace's sums begin at a multiple of this.
ALIGNED = 256


def _if_m(c: Any) -> Any:
    """1 where m is the thin side, else 0; also of many configs at once."""
    return (c.THIN == "m") * 1


def _sides(p: Problem, c: Any) -> tuple[Any, Any]:
    """The thin and the wide side of C."""
    return _if_m(c) * p.m + (1 - _if_m(c)) * p.n, _if_m(c) * p.n + (1 - _if_m(c)) * p.m


def _along_k(p: Problem, c: Any) -> tuple[Any, Any]:
    """1 for the thin and the wide operand where neighbours in memory are neighbours in k, else 0."""
    a, b = int(p.layout[0] == "n"), int(p.layout[1] == "t")
    return _if_m(c) * a + (1 - _if_m(c)) * b, _if_m(c) * b + (1 - _if_m(c)) * a


def _turned(c: Any) -> Any:
    """1 where operands along k are turned by copying, else 0."""
    return (c.TURN == "copy") * 1


def _lines(p: Problem, c: Any) -> tuple[Any, Any]:
    """Elements of a stored row of the thin and of the wide operand."""
    thin, wide = _along_k(p, c)
    side_t, side_w = _sides(p, c)
    return thin * p.k + (1 - thin) * side_t, wide * p.k + (1 - wide) * side_w


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: along the thin side and along the wide one."""
    return c.WARPS_T * c.LANES_T * c.TT, c.WARPS_W * (32 // c.LANES_T) * c.TW


def _threads(c: Any) -> Any:
    return 32 * c.WARPS_T * c.WARPS_W * c.WARPS_K


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles of C."""
    (bt, bw), (side_t, side_w) = _tile(c), _sides(p, c)
    return ceil_div(side_t, bt) * ceil_div(side_w, bw)


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Tiles of all groups, or later their sums, whichever are more."""
    size, (bt, bw), (thin, wide), turned = DTYPE_BYTES[p.dtype], _tile(c), _along_k(p, c), _turned(c)
    grouped = 16 // size
    longer = (1 - turned) * (thin * bt + wide * bw) + turned * (thin + wide) * c.BK
    stage = c.BK * (bt + bw) + grouped * longer
    sums = _if_m(c) * bt * (bw + grouped) + (1 - _if_m(c)) * bw * (bt + 1)
    tiles = c.STAGES * stage
    return c.WARPS_K * size * (tiles * (tiles >= sums) + sums * (tiles < sums))


def _passes(p: Problem, c: Any) -> Any:
    """Copies that a thread makes for a tile of both operands."""
    (bt, bw), group, (thin, wide) = _tile(c), 32 * c.WARPS_T * c.WARPS_W, _along_k(p, c)
    width_t = c.VECTOR_T - thin * _turned(c) * (c.VECTOR_T - 1)
    width_w = c.VECTOR_W - wide * _turned(c) * (c.VECTOR_W - 1)
    return ceil_div(bt * c.BK, width_t * group) + ceil_div(bw * c.BK, width_w * group)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, the shorter operand's values and two of the other, offsets.

    Few sums are kept twice: those of a tile, and those of all.
    """
    size, (thin, wide) = DTYPE_BYTES[p.dtype], _along_k(p, c)
    several, grouped = ((thin + wide) > 0) * (1 - _turned(c)), 16 // size
    fewer = c.TT * (c.TT <= c.TW) + c.TW * (c.TT > c.TW)
    sums = c.TT * c.TW * (1 + (c.TT * c.TW <= TWICE_MOST))
    values = sums + several * grouped * (fewer + 2) + (1 - several) * (c.TT + c.TW)
    return size // 4 * values + _passes(p, c) + OTHER_REGISTERS


def _register_limit(d: Any, c: Any) -> Any:
    return d.registers_left(_threads(c), c.BLOCKS_PER_SM)


def _widest(line: Any, p: Problem, most: Any) -> Any:
    """Elements of the widest copy that is aligned in rows of that length."""
    widest = 1
    for vector in (2, 4):
        fits = (line % vector == 0) & (vector * DTYPE_BYTES[p.dtype] <= 16) & (vector <= most)
        widest = widest + fits * (vector - widest)
    return widest


def _most_thin(p: Problem, c: Any) -> Any:
    """Elements that a copy of the thin operand may have: its tile may be narrower than a wide copy."""
    along_k = _along_k(p, c)[0]
    return along_k * 4 + (1 - along_k) * _tile(c)[0]


def _launch(p: Problem, c: Config) -> Launch:
    tiles, size = _tiles(p, c), DTYPE_BYTES[p.dtype]
    counters = 4 * tiles
    bt, bw = _tile(c)
    sums = tiles * c.SPLIT_K * bt * bw * size
    workspace = Workspace(ceil_div(counters, ALIGNED) * ALIGNED + sums, counters) if c.SPLIT_K > 1 else None
    shared = _shared_bytes(p, c)
    return Launch((tiles, c.SPLIT_K), (_threads(c),), shared_bytes=shared, workspace=workspace)


def _start(thin: str, threads: tuple[int, ...], **others: Value) -> dict[str, Value]:
    """A config from (TT, TW, LANES_T, WARPS_T, WARPS_W, WARPS_K) and the others."""
    names = ("TT", "TW", "LANES_T", "WARPS_T", "WARPS_W", "WARPS_K")
    usual = {
        "BK": 32,
        "STAGES": 3,
        "SPLIT_K": 4,
        "VECTOR_W": 4,
        "VECTOR_T": 4,
        "BLOCKS_PER_SM": 1,
        "TURN": "read",
        "ORDER": "rows",
    }
    return {"THIN": thin, **dict(zip(names, threads, strict=True)), **usual, **others}


def _starts() -> list[dict[str, Value]]:
    """One or two for each breadth of C, for m and for n: those that are legal for a problem are few."""
    found = [_start("m", (8, 4, 2, 1, 2, 4), BK=16, STAGES=2)]
    for thin in ("m", "n"):
        for tt in (1, 2, 4):
            for vector_t in sorted({1, tt, 4}):
                found += [
                    _start(thin, (tt, 4, 1, 1, 1, 8), BK=16, STAGES=3, SPLIT_K=2, VECTOR_T=vector_t),
                    _start(thin, (tt, 2, 1, 1, 1, 8), STAGES=2, SPLIT_K=1, VECTOR_T=vector_t),
                ]
        found += [
            _start(thin, (8, 4, 1, 1, 1, 8), BK=16, STAGES=3, SPLIT_K=2),
            _start(thin, (8, 2, 1, 1, 1, 8), STAGES=2, SPLIT_K=1),
            _start(thin, (8, 4, 2, 1, 1, 8), BK=16, STAGES=3, SPLIT_K=1),
            _start(thin, (8, 4, 2, 1, 2, 4), STAGES=3, SPLIT_K=2),
            _start(thin, (8, 8, 4, 1, 2, 4), BK=16, STAGES=3, SPLIT_K=2),
            _start(thin, (8, 8, 4, 1, 2, 4), BK=16, STAGES=3, SPLIT_K=2, TURN="copy"),
            _start(thin, (8, 8, 4, 1, 4, 2), BK=16, STAGES=4, SPLIT_K=4),
            _start(thin, (16, 8, 2, 1, 1, 8), BK=16, STAGES=2, SPLIT_K=2),
            _start(thin, (8, 8, 8, 1, 4, 2), BK=16, STAGES=4),
            _start(thin, (8, 8, 4, 2, 2, 2), BK=16, STAGES=4),
            _start(thin, (8, 8, 4, 2, 2, 2), BK=16, STAGES=4, TURN="copy"),
            _start(thin, (8, 8, 4, 4, 2, 1), BK=16, STAGES=4),
            _start(thin, (8, 8, 4, 4, 2, 1), BK=16, STAGES=4, TURN="copy"),
            _start(thin, (4, 4, 4, 1, 1, 8), BK=16, STAGES=3, SPLIT_K=1, VECTOR_W=2, VECTOR_T=2),
            _start(thin, (4, 8, 8, 1, 2, 4), BK=16, STAGES=3, VECTOR_W=2, VECTOR_T=2),
            _start(thin, (16, 8, 4, 2, 2, 2), BK=16, STAGES=3),
            _start(thin, (16, 8, 4, 2, 4, 1), BK=16, STAGES=4, SPLIT_K=8),
            _start(thin, (16, 8, 4, 2, 4, 1), BK=16, STAGES=4, SPLIT_K=8, TURN="copy"),
        ]
    return found


DEFAULT, *OTHER_STARTS = _starts()

KERNEL = Kernel(
    operation="gemm",
    name="thin",
    target="cuda",
    source=Path("thin.cu"),
    includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("operands.cuh"), Path("total.cuh")),
    idea="for a thin C: the large operand read once, K split among warps and blocks",
    parameters=(
        choice("THIN", "m", "n"),
        powers_of_two("TT", 1, 16),
        powers_of_two("TW", 1, 16),
        powers_of_two("LANES_T", 1, 8),
        powers_of_two("WARPS_T", 1, 4),
        powers_of_two("WARPS_W", 1, 8),
        powers_of_two("WARPS_K", 1, 16),
        powers_of_two("BK", 8, 64),
        choice("STAGES", 2, 3, 4, 6),
        powers_of_two("SPLIT_K", 1, 32),
        choice("TURN", "read", "copy"),
        choice("ORDER", "rows", "snake"),
        choice("VECTOR_W", 1, 2, 4),
        choice("VECTOR_T", 1, 2, 4),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        Constraint(
            "asynchronous copies need compute capability 8.0",
            lambda p, d, c: (d.compute_capability >= 80) & (c.STAGES > 0),
        ),
        for_speed(
            "C is thin and the wide operand large",
            lambda p, d, c: (
                (min(p.m, p.n) <= THIN_MOST)
                & (max(p.m, p.n) * p.k >= WIDE_LEAST)
                & (min(max(p.m, p.n), p.k) >= 2 * THIN_MOST)
                & (c.STAGES > 0)
            ),
        ),
        for_speed(
            "THIN is the shorter side of C",
            lambda p, d, c: (c.THIN == "m") == (p.m <= p.n),
        ),
        Constraint(
            "an asynchronous copy moves 16 bytes at most",
            lambda p, d, c: (
                DTYPE_BYTES[p.dtype] * ((c.VECTOR_W > c.VECTOR_T) * (c.VECTOR_W - c.VECTOR_T) + c.VECTOR_T)
                <= 16
            ),
        ),
        Constraint(
            "stored rows of the wide operand are divisible by VECTOR_W, those of the thin one by VECTOR_T",
            lambda p, d, c: (_lines(p, c)[1] % c.VECTOR_W == 0) & (_lines(p, c)[0] % c.VECTOR_T == 0),
        ),
        for_speed(
            "copies of the wide operand are as wide as its alignment allows",
            lambda p, d, c: _widest(_lines(p, c)[1], p, 4) == c.VECTOR_W,
        ),
        for_speed(
            "a block's tile is the least that covers the thin side, or the widest",
            lambda p, d, c: (
                (2 * _sides(p, c)[0] > _tile(c)[0])
                & ((_tile(c)[0] >= _sides(p, c)[0]) | (_tile(c)[0] >= THIN_MOST))
            ),
        ),
        for_speed(
            "the order of products is of interest where arithmetic counts",
            lambda p, d, c: (c.ORDER == "rows") | (_sides(p, c)[0] > COPIED_LEAST),
        ),
        for_speed(
            "copies turn where there is something to turn, and arithmetic enough for registers to matter",
            lambda p, d, c: (
                (c.TURN == "read") | ((sum(_along_k(p, c)) > 0) & (_sides(p, c)[0] >= COPIED_LEAST))
            ),
        ),
        Constraint(
            "a copy of the thin operand is no longer than its tile",
            lambda p, d, c: _most_thin(p, c) >= c.VECTOR_T,
        ),
        for_speed(
            "copies of the thin operand are as wide as its alignment and tile allow",
            lambda p, d, c: _widest(_lines(p, c)[0], p, _most_thin(p, c)) == c.VECTOR_T,
        ),
        Constraint(
            "a thread has at most 128 registers of sums",
            lambda p, d, c: c.TT * c.TW * DTYPE_BYTES[p.dtype] <= 512,
        ),
        for_speed(
            "a thread's sums are enough, and square enough, for shared memory to keep up with arithmetic",
            lambda p, d, c: (
                ((_tile(c)[0] <= c.TT * c.TW) | (c.TT * c.TW >= SUMS_ENOUGH))
                & ((_tile(c)[0] < COPIED_LEAST) | ((c.TW <= 4 * c.TT) & (c.TT <= 4 * c.TW)))
            ),
        ),
        for_speed(
            "long chains of sums are cut into four at least, by groups or blocks",
            lambda p, d, c: (c.TT * c.TW <= TWICE_MOST) | (c.WARPS_K * c.SPLIT_K >= 4) | (p.k <= CHAIN_MOST),
        ),
        Constraint(
            "a block has at least two warps and no more threads than the device allows",
            lambda p, d, c: (_threads(c) >= 2 * d.warp_size) & (_threads(c) <= d.max_threads_per_block),
        ),
        Constraint(
            "offsets within a tile fit into 32 bits",
            lambda p, d, c: (
                ((_tile(c)[1] + _tile(c)[0] + c.BK) * p.m < 2**32)
                & ((_tile(c)[1] + _tile(c)[0] + c.BK) * p.n < 2**32)
                & ((_tile(c)[1] + _tile(c)[0] + c.BK) * p.k < 2**32)
            ),
        ),
        Constraint(
            "STAGES tiles of every group, and then their sums, fit into a block's shared memory",
            lambda p, d, c: _shared_bytes(p, c) + 16 <= d.shared_bytes_per_block,
        ),
        Constraint(
            "BLOCKS_PER_SM blocks fit into a multiprocessor's threads and shared memory",
            lambda p, d, c: (
                (_threads(c) * c.BLOCKS_PER_SM <= d.max_threads_per_sm)
                & (
                    (_shared_bytes(p, c) + 16 + d.shared_bytes_per_sm - d.shared_bytes_per_block)
                    * c.BLOCKS_PER_SM
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
            "blocks keep three quarters of the multiprocessors busy; where K is split, at most twice in turn",
            lambda p, d, c: (
                (4 * _tiles(p, c) * c.SPLIT_K >= 3 * d.sm_count)
                & ((_tiles(p, c) * c.SPLIT_K <= 2 * d.sm_count * c.BLOCKS_PER_SM) | (c.SPLIT_K == 1))
            ),
        ),
        for_speed(
            "every group has at least two tiles to go through",
            lambda p, d, c: p.k >= 2 * c.SPLIT_K * c.WARPS_K * c.BK,
        ),
        for_speed(
            "enough of the wide operand is on its way to a multiprocessor",
            lambda p, d, c: (
                (c.STAGES - 1) * c.BK * c.WARPS_K * _tile(c)[1] * c.BLOCKS_PER_SM * DTYPE_BYTES[p.dtype]
                >= IN_FLIGHT_LEAST
            ),
        ),
        for_speed(
            "a multiprocessor has at least four warps",
            lambda p, d, c: _threads(c) * c.BLOCKS_PER_SM >= 4 * d.warp_size,
        ),
    ),
    launch=_launch,
    defaults=DEFAULT,
    starts=tuple(OTHER_STARTS),
)
