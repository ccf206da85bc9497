"""gemm on CUDA for a thin C: the large operand is read once, K is split among warps and blocks."""

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
    blocks_fit,
    copy_at_most_16_bytes,
    for_speed,
    larger,
    registers_fit,
    select,
    shared_fits,
    threads_fit,
)

from ._operands import (
    Operand,
    grouped,
    operand_registers,
    order_counts,
    sums_fit,
    tile_elements,
    turning_counts,
    widest_copies,
)
from ._rules import divisible_lines, enough_warps, offsets_fit_32_bits, residency_limits_registers
from ._thin import (
    by_side,
    counted_workspace,
    enough_in_flight,
    side_lines,
    sides,
    sides_along_k,
    sums_elements,
    thin_is_shorter,
    worth_reading,
)

#: Registers beside sums, values read together and offsets of copies: addresses, loop, what moves ahead.
OTHER_REGISTERS = 28
#: C is thin up to this.
THIN_MOST = 128
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
#: Shared memory beside tiles and sums, in bytes.
STATIC_BYTES = 16


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: along the thin side and along the wide one."""
    return c.WARPS_T * c.LANES_T * c.TT, c.WARPS_W * (32 // c.LANES_T) * c.TW


def _operands(p: Problem, c: Any) -> tuple[Operand, Operand]:
    (bt, bw), (thin, wide) = _tile(c), sides_along_k(p, c)
    return Operand(bt, c.TT, thin, c.VECTOR_T), Operand(bw, c.TW, wide, c.VECTOR_W)


def _group(c: Any) -> Any:
    """Threads that have the same part of k."""
    return 32 * c.WARPS_T * c.WARPS_W


def _threads(p: Problem, c: Any) -> Any:
    return _group(c) * c.WARPS_K


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles of C."""
    (bt, bw), (side_t, side_w) = _tile(c), sides(p, c)
    return ceil_div(side_t, bt) * ceil_div(side_w, bw)


def _dynamic_bytes(p: Problem, c: Any) -> Any:
    """Tiles of all groups, or later their sums, whichever are more."""
    tiles = c.STAGES * tile_elements(p, c, _operands(p, c))
    return c.WARPS_K * DTYPE_BYTES[p.dtype] * larger(tiles, sums_elements(p, c, _tile(c), grouped(p)))


def _shared_bytes(p: Problem, c: Any) -> Any:
    return _dynamic_bytes(p, c) + STATIC_BYTES


def _sums(p: Problem, c: Any) -> Any:
    """Sums of a thread."""
    return c.TT * c.TW


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated. Few sums are kept twice: those of a tile, and those of all."""
    sums = select(_sums(p, c) <= TWICE_MOST, 2, 1) * _sums(p, c)
    return operand_registers(p, c, _operands(p, c), _group(c), sums) + OTHER_REGISTERS


def _most_thin(p: Problem, c: Any) -> Any:
    """Elements that a copy of the thin operand may have: its tile may be narrower than a wide copy."""
    return select(sides_along_k(p, c)[0] == 1, 4, _tile(c)[0])


def _in_flight(p: Problem, d: Any, c: Any) -> Any:
    """Bytes of the wide operand on their way to a multiprocessor with BLOCKS_PER_SM blocks."""
    return (c.STAGES - 1) * c.BK * c.WARPS_K * _tile(c)[1] * c.BLOCKS_PER_SM * DTYPE_BYTES[p.dtype]


def _launch(p: Problem, c: Config) -> Launch:
    tiles, (bt, bw) = _tiles(p, c), _tile(c)
    sums = tiles * c.SPLIT_K * bt * bw * DTYPE_BYTES[p.dtype]
    workspace = counted_workspace(tiles, sums) if c.SPLIT_K > 1 else None
    shared = _dynamic_bytes(p, c)
    return Launch((tiles, c.SPLIT_K), (_threads(p, c),), shared_bytes=shared, workspace=workspace)


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
    source=Source(
        Path("thin.cu"),
        includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("operands.cuh"), Path("total.cuh")),
    ),
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
        asynchronous_copies("STAGES"),
        worth_reading(THIN_MOST, 2 * THIN_MOST),
        thin_is_shorter(),
        copy_at_most_16_bytes("VECTOR_T", "VECTOR_W"),
        divisible_lines({"the thin operand": "VECTOR_T", "the wide one": "VECTOR_W"}, side_lines),
        widest_copies("the wide operand", "VECTOR_W", lambda p, c: side_lines(p, c)[1]),
        for_speed(
            "a block's tile is the least that covers the thin side, or the widest",
            lambda p, d, c: (
                (2 * sides(p, c)[0] > _tile(c)[0])
                & ((_tile(c)[0] >= sides(p, c)[0]) | (_tile(c)[0] >= THIN_MOST))
            ),
        ),
        order_counts(lambda p, c: sides(p, c)[0] > COPIED_LEAST),
        turning_counts(lambda p, c: sides(p, c)[0] >= COPIED_LEAST),
        Constraint(
            "a copy of the thin operand is no longer than its tile",
            lambda p, d, c: _most_thin(p, c) >= c.VECTOR_T,
        ),
        widest_copies("the thin operand", "VECTOR_T", lambda p, c: side_lines(p, c)[0], _most_thin),
        sums_fit(_sums),
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
        threads_fit(_threads, least_warps=2),
        offsets_fit_32_bits(lambda p, c: sum(_tile(c)) + c.BK, "m", "n", "k"),
        shared_fits("STAGES tiles of every group, and then their sums,", _shared_bytes),
        blocks_fit(_threads, _shared_bytes),
        registers_fit("sums, values and offsets of copies", _registers, _threads),
        residency_limits_registers(_threads),
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
        enough_in_flight(_in_flight, IN_FLIGHT_LEAST),
        enough_warps(_threads, 4),
    ),
    launch=_launch,
    tiles=lambda p, c: {**dict(zip(("m", "n"), by_side(c, *_tile(c)), strict=True)), "k": p.k / c.SPLIT_K},
    starts=(
        DEFAULT,
        *(OTHER_STARTS),
    ),
)
