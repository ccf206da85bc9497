"""gemm on CUDA for a C of few rows or columns: the large operand streams straight into registers."""

from itertools import product
from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    Config,
    Constraint,
    Kernel,
    Launch,
    Problem,
    Scope,
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
    smaller,
    threads_fit,
)

from ._operands import MOST_BLOCKS, SUMS_MOST_BYTES, grouped, sum_bytes, sums_fit, widest_copies
from ._rules import blocks_run_at_once, divisible_lines, offsets_fit_32_bits
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

#: Registers beside sums and pieces: addresses, loops, what moves ahead.
OTHER_REGISTERS = 20
#: Further ones where elements of 16 bits are widened: the compiler's reports have these and a few more.
WIDENING_REGISTERS = 8
#: C is thin up to this: beyond, instructions take longer than reading.
THIN_MOST = 8
#: The shorter side of the wide operand is at least this.
SIDE_LEAST = 256
#: Pieces of a thread that are on their way at once: fewer are too little, more only take registers.
PIECES_LEAST, PIECES_MOST = 4, 16
#: Warps of a multiprocessor where blocks stay.
WARPS_LEAST = 16
#: Bytes on their way that a multiprocessor needs to read at nearly full speed; fewer are not worth a trial.
IN_FLIGHT_LEAST = 24 << 10


def _along_k(p: Problem, c: Any) -> Any:
    """Whether neighbours in the wide operand's memory are neighbours in k."""
    return sides_along_k(p, c)[1] == 1


def _line(p: Problem, c: Any) -> Any:
    """Elements of a stored line of the wide operand."""
    return side_lines(p, c)[1]


def _threads(p: Problem, c: Any) -> Any:
    return 32 * c.WARPS_W * c.WARPS_K


def _width(p: Problem, c: Any) -> Any:
    """C's elements across a block's tile."""
    return c.WARPS_W * select(_along_k(p, c), c.LINES, c.LANES * c.VECTOR * c.PACKS)


def _step(p: Problem, c: Any) -> Any:
    """k that the warps of a block go through at once."""
    return c.WARPS_K * select(_along_k(p, c), 32 * c.VECTOR * c.PACKS, (32 // c.LANES) * c.LINES)


def _groups(p: Problem, c: Any) -> Any:
    """Parts of the thin operand, one of which a block stays with."""
    return ceil_div(sides(p, c)[0], c.TT) * ceil_div(p.k, c.BK)


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles that blocks with the same part of the thin operand go through."""
    return ceil_div(sides(p, c)[1], _width(p, c))


def _blocks(p: Problem, c: Any) -> Any:
    """Blocks that are launched: at least one for every part of the thin operand."""
    groups, units = _groups(p, c), _groups(p, c) * _tiles(p, c)
    return larger(smaller(select(c.BLOCKS == 0, units, c.BLOCKS), units), groups)


def _share(p: Problem, c: Any) -> Any:
    """Elements of shared memory for a block's part of the thin operand: SHARE of the source."""
    widest, stays_across = grouped(p), (sum_bytes(p) > DTYPE_BYTES[p.dtype]) & (sides_along_k(p, c)[0] == 0)
    skewed = _along_k(p, c) & (widest < c.VECTOR * c.TT)
    return select(
        stays_across, c.TT * c.BK + select(skewed, c.BK // c.VECTOR * widest, 0), c.TT * (c.BK + widest)
    )


def _dynamic_bytes(p: Problem, c: Any) -> Any:
    """A block's part of the thin operand and then its warps' sums; both, some sums twice, where blocks stay."""
    part = DTYPE_BYTES[p.dtype] * _share(p, c)
    sums = sum_bytes(p) * c.WARPS_K * sums_elements(p, c, (c.TT, _width(p, c)), 16 // sum_bytes(p))
    staying = part + select(_along_k(p, c), 2, 1) * sums
    return select(c.BLOCKS > 0, staying, larger(part, sums))


def _shared_bytes(p: Problem, c: Any) -> Any:
    """All of it: beside the dynamic part a number for each thread and a few more."""
    return _dynamic_bytes(p, c) + 4 * _threads(p, c) + 32


def _sums(p: Problem, c: Any) -> Any:
    """Sums of a thread."""
    return c.TT * select(_along_k(p, c), c.LINES, c.PACKS * c.VECTOR)


def _pieces(p: Problem, c: Any) -> Any:
    """Elements of the wide operand that a thread has in flight."""
    return c.LINES * c.PACKS * c.VECTOR * c.AHEAD


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, pieces, the thin operand's values for them, offsets.

    Pieces of 16 bits are widened as they are used: those of a step take twice as much.
    """
    stored, wide = DTYPE_BYTES[p.dtype], sum_bytes(p)
    values = _sums(p, c) + select(_along_k(p, c), c.PACKS * c.VECTOR, c.LINES)
    pieces = stored * _pieces(p, c) + (wide - stored) * (_pieces(p, c) // c.AHEAD)
    others = OTHER_REGISTERS + (WIDENING_REGISTERS if wide > stored else 0)
    return (wide * values + pieces) // 4 + c.LINES + c.PACKS + others


def _in_flight(p: Problem, d: Any, c: Any) -> Any:
    """Bytes in flight to a multiprocessor that is as full as registers and shared memory allow."""
    by_registers = d.registers_per_block // (_registers(p, c) * _threads(p, c))
    by_shared = d.shared_bytes_per_sm // (_dynamic_bytes(p, c) + 2048)
    blocks = smaller(smaller(by_registers, by_shared), d.max_threads_per_sm // _threads(p, c))
    return blocks * _threads(p, c) * _pieces(p, c) * DTYPE_BYTES[p.dtype]


def _launch(p: Problem, c: Config) -> Launch:
    tiles, shares = _tiles(p, c) * ceil_div(sides(p, c)[0], c.TT), ceil_div(p.k, c.BK)
    sums = tiles * shares * c.TT * _width(p, c) * sum_bytes(p) if shares > 1 else 0
    workspace = counted_workspace(_groups(p, c) + tiles, sums)
    shared = _dynamic_bytes(p, c)
    return Launch((_blocks(p, c),), (_threads(p, c),), shared_bytes=shared, workspace=workspace)


def _start(thin: str, shape: tuple[int, ...], **others: Value) -> dict[str, Value]:
    """A config from (TT, LINES, PACKS, WARPS_W, WARPS_K, BK) and the others."""
    names = ("TT", "LINES", "PACKS", "WARPS_W", "WARPS_K", "BK")
    usual = {"VECTOR": 4, "LANES": 32, "AHEAD": 1, "BLOCKS": 0, "BLOCKS_PER_SM": 1}
    return {"THIN": thin, **dict(zip(names, shape, strict=True)), **usual, **others}


def _starts() -> list[dict[str, Value]]:
    """Blocks that stay, as many as some devices run at once, for neighbours along k; else one for each tile."""
    found = []
    for thin in ("m", "n"):
        for sm_count in (132, 108, 128):
            two, three, four = ({"BLOCKS": sm_count * blocks, "BLOCKS_PER_SM": blocks} for blocks in (2, 3, 4))
            found += [
                _start(thin, (1, 1, 4, 1, 16, 8192), **two),
                _start(thin, (1, 1, 4, 1, 8, 4096), **four),
                _start(thin, (2, 2, 2, 1, 8, 4096), AHEAD=2, **three),
                _start(thin, (4, 2, 2, 1, 8, 2048), **three),
                _start(thin, (4, 2, 2, 1, 8, 2048), **two),
                _start(thin, (8, 4, 1, 1, 8, 2048), AHEAD=2, **two),
            ]
        for tt in (1, 2, 4, 8):
            found += [
                _start(thin, (tt, 4, 1, 1, 16, 8192 if tt < 8 else 4096), LANES=16, AHEAD=2),
                _start(thin, (tt, 4, 1, 1, 16, 4096), LANES=8, AHEAD=2),
            ]
            for vector in (1, 2):  # lines that are not aligned, and float64
                found += [
                    _start(thin, (tt, 2, 4, 1, 8, 2048), VECTOR=vector, BLOCKS=264, BLOCKS_PER_SM=2),
                    _start(thin, (tt, 4, 1, 1, 16, 8192 if tt < 8 else 4096), VECTOR=vector, AHEAD=2),
                ]
        found.append(_start(thin, (8, 4, 1, 2, 8, 4096), LANES=16, AHEAD=2))
    return found


def _starts_of_16_bits() -> list[dict[str, Value]]:
    """The same in pieces of 8 elements: a lane has twice the columns, and 8 lanes read 128 bytes of a line."""
    found = []
    for thin, tt in product(("m", "n"), (1, 2, 4, 8)):
        ahead, warps = (2, 16) if tt < 8 else (1, 8)  # registers
        for sm_count in (132, 108, 128):
            one, two = ({"BLOCKS": sm_count * blocks, "BLOCKS_PER_SM": blocks} for blocks in (1, 2))
            found += [
                _start(thin, (tt, 4, 1, 1, 16, 8192), VECTOR=8, AHEAD=ahead, **one),
                _start(thin, (tt, 4, 1, 1, 8, 4096), VECTOR=8, AHEAD=ahead, **two),
                _start(thin, (tt, 4, 1, 2, 8, 4096), VECTOR=8, **one),
                _start(thin, (tt, 2, 1, 1, 8, 4096), VECTOR=8, AHEAD=2, **two),
            ]
        for lanes, bk in ((8, 8192), (8, 4096), (8, 2048), (16, 4096), (16, 1024)):
            found.append(_start(thin, (tt, 4, 1, 1, warps, bk), VECTOR=8, LANES=lanes, AHEAD=2))
    return found


KERNEL = Kernel(
    operation="gemm",
    name="multivector",
    target="cuda",
    source=Source(
        Path("multivector.cu"),
        includes=(
            Path("half.cuh"),
            Path("epilogue.cuh"),
            Path("../../access.cuh"),
            Path("stored.cuh"),
            Path("copies.cuh"),
            Path("total.cuh"),
        ),
    ),
    idea="for a thin C: the large operand read once, straight into registers, many loads in flight",
    scope=Scope(dtypes=("float32", "float64", "float16", "bfloat16"), epilogues=True),
    parameters=(
        choice("THIN", "m", "n"),
        powers_of_two("TT", 1, 8),
        powers_of_two("LINES", 1, 16),
        powers_of_two("PACKS", 1, 4),
        choice("VECTOR", 1, 2, 4, 8),
        powers_of_two("LANES", 8, 32),
        powers_of_two("WARPS_W", 1, 8),
        powers_of_two("WARPS_K", 1, 32),
        powers_of_two("BK", 32, 16384),
        choice("AHEAD", 1, 2, 4),
        choice("BLOCKS", 0, *range(2, MOST_BLOCKS + 1, 2)),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        asynchronous_copies("BK"),
        blocks_run_at_once(),
        worth_reading(THIN_MOST, SIDE_LEAST),
        thin_is_shorter(),
        for_speed(
            "TT is the least that covers the thin side",
            lambda p, d, c: (sides(p, c)[0] <= c.TT) & (2 * sides(p, c)[0] > c.TT),
        ),
        copy_at_most_16_bytes("VECTOR"),
        divisible_lines({"the wide operand": "VECTOR"}, lambda p, c: (_line(p, c),)),
        widest_copies("the wide operand", "VECTOR", _line, lambda p, c: 8),
        Constraint(
            "all lanes are side by side if neighbours in memory are neighbours in k",
            lambda p, d, c: (c.LANES == 32) | (sides_along_k(p, c)[1] == 0),
        ),
        Constraint(
            "a block's share of k is a multiple of what its warps go through in AHEAD steps",
            lambda p, d, c: c.BK % (c.AHEAD * _step(p, c)) == 0,
        ),
        sums_fit(_sums),
        Constraint(
            "a thread has at most 128 registers of pieces",
            lambda p, d, c: _pieces(p, c) * DTYPE_BYTES[p.dtype] <= SUMS_MOST_BYTES,
        ),
        threads_fit(_threads),
        for_speed("a block has at least four warps", lambda p, d, c: _threads(p, c) >= 4 * d.warp_size),
        offsets_fit_32_bits(lambda p, c: c.LINES, "k"),
        shared_fits("a share of the thin operand and the warps' sums", _shared_bytes),
        blocks_fit(_threads, _shared_bytes),
        registers_fit("sums, pieces and offsets", _registers, _threads),
        for_speed(
            "BLOCKS_PER_SM above 1 is the number of blocks that stay; together they have enough warps",
            lambda p, d, c: (
                ((c.BLOCKS_PER_SM == 1) & (c.BLOCKS == 0))
                | ((c.BLOCKS > 0) & (_threads(p, c) * c.BLOCKS_PER_SM >= WARPS_LEAST * d.warp_size))
            ),
        ),
        for_speed(
            "blocks that do not stay run in at most two waves if each has columns of its own",
            lambda p, d, c: (c.BLOCKS > 0) | _along_k(p, c) | (_groups(p, c) * _tiles(p, c) <= 2 * d.sm_count),
        ),
        for_speed(
            "a thread reads one piece of a line if it keeps that piece's columns, and several pieces at once",
            lambda p, d, c: (
                ((c.PACKS == 1) | _along_k(p, c))
                & (c.LINES * c.PACKS * c.AHEAD >= PIECES_LEAST)
                & (c.LINES * c.PACKS * c.AHEAD <= PIECES_MOST)
            ),
        ),
        for_speed(
            "blocks that stay are fewer than there are tiles and shares, and as many for each share",
            lambda p, d, c: (
                (c.BLOCKS == 0) | ((_groups(p, c) * _tiles(p, c) > c.BLOCKS) & (c.BLOCKS % _groups(p, c) == 0))
            ),
        ),
        for_speed(
            "blocks keep three quarters of the multiprocessors busy",
            lambda p, d, c: 4 * _groups(p, c) * _tiles(p, c) >= 3 * d.sm_count,
        ),
        for_speed(
            "shares of k are nearly full",
            lambda p, d, c: (8 * ceil_div(p.k, c.BK) * c.BK <= 9 * p.k) | ((p.k <= c.BK) & (2 * p.k > c.BK)),
        ),
        for_speed(
            "blocks copy less of the thin operand than half the size of the wide one",
            lambda p, d, c: 2 * _blocks(p, c) * c.TT * c.BK <= sides(p, c)[1] * p.k,
        ),
        for_speed(
            "sums of shares are fewer than an eighth of the elements of the wide operand",
            lambda p, d, c: 8 * c.TT * ceil_div(p.k, c.BK) <= p.k,
        ),
        enough_in_flight(_in_flight, IN_FLIGHT_LEAST),
    ),
    launch=_launch,
    tiles=lambda p, c: {**dict(zip(("m", "n"), by_side(c, c.TT, _width(p, c)), strict=True)), "k": c.BK},
    starts=(_start("m", (4, 4, 1, 2, 4, 512)), *_starts(), *_starts_of_16_bits()),
)
