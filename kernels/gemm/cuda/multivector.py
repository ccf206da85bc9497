"""gemm on CUDA for a C of few rows or columns: the large operand streams straight into registers."""

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

#: Registers beside sums and pieces: addresses, loops, what moves ahead.
OTHER_REGISTERS = 20
#: C is thin up to this: beyond, instructions take longer than reading.
THIN_MOST = 8
#: The shorter side of the wide operand is at least this.
SIDE_LEAST = 256
#: Pieces of a thread that are on their way at once: fewer are too little, more only take registers.
PIECES_LEAST, PIECES_MOST = 4, 16
#: Warps of a multiprocessor where blocks stay.
WARPS_LEAST = 16
#: Elements of the wide operand below which there is too little to read for its speed to matter.
WIDE_LEAST = 1 << 20
#: Bytes on their way that a multiprocessor needs to read at nearly full speed; fewer are not worth a trial.
IN_FLIGHT_LEAST = 24 << 10
#: Blocks that stay at the most: multiprocessors of the largest devices, times BLOCKS_PER_SM.
MOST_BLOCKS = 640
#: A workspace's sums begin at a multiple of this.
ALIGNED = 256


def _if_m(c: Any) -> Any:
    """1 where m is the thin side, else 0; also of many configs at once."""
    return (c.THIN == "m") * 1


def _sides(p: Problem, c: Any) -> tuple[Any, Any]:
    """The thin and the wide side of C."""
    return _if_m(c) * p.m + (1 - _if_m(c)) * p.n, _if_m(c) * p.n + (1 - _if_m(c)) * p.m


def _along_k(p: Problem, c: Any) -> Any:
    """1 where neighbours in the wide operand's memory are neighbours in k, else 0."""
    a, b = int(p.layout[0] == "n"), int(p.layout[1] == "t")
    return _if_m(c) * b + (1 - _if_m(c)) * a


def _line(p: Problem, c: Any) -> Any:
    """Elements of a stored line of the wide operand."""
    along_k = _along_k(p, c)
    return along_k * p.k + (1 - along_k) * _sides(p, c)[1]


def _threads(c: Any) -> Any:
    return 32 * c.WARPS_W * c.WARPS_K


def _width(p: Problem, c: Any) -> Any:
    """C's elements across a block's tile."""
    along_k = _along_k(p, c)
    return c.WARPS_W * (along_k * c.LINES + (1 - along_k) * c.LANES * c.VECTOR * c.PACKS)


def _step(p: Problem, c: Any) -> Any:
    """k that the warps of a block go through at once."""
    along_k = _along_k(p, c)
    return c.WARPS_K * (along_k * 32 * c.VECTOR * c.PACKS + (1 - along_k) * (32 // c.LANES) * c.LINES)


def _groups(p: Problem, c: Any) -> Any:
    """Parts of the thin operand, one of which a block stays with."""
    return ceil_div(_sides(p, c)[0], c.TT) * ceil_div(p.k, c.BK)


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles that blocks with the same part of the thin operand go through."""
    return ceil_div(_sides(p, c)[1], _width(p, c))


def _blocks(p: Problem, c: Any) -> Any:
    """Blocks that are launched: at least one for every part of the thin operand."""
    groups, units = _groups(p, c), _groups(p, c) * _tiles(p, c)
    asked = c.BLOCKS + (c.BLOCKS == 0) * units
    fewer = asked * (asked <= units) + units * (asked > units)
    return fewer * (fewer >= groups) + groups * (fewer < groups)


def _shared_bytes(p: Problem, c: Any) -> Any:
    """A block's part of the thin operand and then its warps' sums; both, some sums twice, where blocks stay."""
    size, width, is_m, stays = DTYPE_BYTES[p.dtype], _width(p, c), _if_m(c), (c.BLOCKS > 0) * 1
    grouped = 16 // size
    part = c.TT * (c.BK + grouped)
    sums = c.WARPS_K * (is_m * c.TT * (width + grouped) + (1 - is_m) * width * (c.TT + 1))
    larger = part * (part >= sums) + sums * (part < sums)
    return size * (stays * (part + (1 + _along_k(p, c)) * sums) + (1 - stays) * larger)


def _static_bytes(c: Any) -> Any:
    """Shared memory beside that: a number for each thread and a few more."""
    return 4 * _threads(c) + 32


def _sums(p: Problem, c: Any) -> Any:
    """Sums of a thread."""
    along_k = _along_k(p, c)
    return c.TT * (along_k * c.LINES + (1 - along_k) * c.PACKS * c.VECTOR)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, pieces, the thin operand's values for them, offsets."""
    along_k = _along_k(p, c)
    pieces = c.LINES * c.PACKS * c.VECTOR * c.AHEAD
    values = along_k * c.PACKS * c.VECTOR + (1 - along_k) * c.LINES
    return DTYPE_BYTES[p.dtype] // 4 * (_sums(p, c) + pieces + values) + c.LINES + c.PACKS + OTHER_REGISTERS


def _register_limit(d: Any, c: Any) -> Any:
    return d.registers_left(_threads(c), c.BLOCKS_PER_SM)


def _in_flight(p: Problem, d: Any, c: Any) -> Any:
    """Bytes on their way to a multiprocessor that is as full as registers and shared memory allow."""
    by_registers = d.registers_per_block // (_registers(p, c) * _threads(c))
    by_shared = d.shared_bytes_per_sm // (_shared_bytes(p, c) + 2048)
    by_threads = d.max_threads_per_sm // _threads(c)
    blocks = by_registers * (by_registers <= by_shared) + by_shared * (by_registers > by_shared)
    blocks = blocks * (blocks <= by_threads) + by_threads * (blocks > by_threads)
    return blocks * _threads(c) * c.AHEAD * c.LINES * c.PACKS * c.VECTOR * DTYPE_BYTES[p.dtype]


def _launch(p: Problem, c: Config) -> Launch:
    size, tiles = DTYPE_BYTES[p.dtype], _tiles(p, c) * ceil_div(_sides(p, c)[0], c.TT)
    shares = ceil_div(p.k, c.BK)
    counters = 4 * (_groups(p, c) + tiles)
    sums = tiles * shares * c.TT * _width(p, c) * size if shares > 1 else 0
    workspace = Workspace(ceil_div(counters, ALIGNED) * ALIGNED + sums, counters)
    blocks = _blocks(p, c)
    return Launch((blocks,), (_threads(c),), shared_bytes=_shared_bytes(p, c), workspace=workspace)


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


KERNEL = Kernel(
    operation="gemm",
    name="multivector",
    target="cuda",
    source=Path("multivector.cu"),
    includes=(Path("copies.cuh"), Path("total.cuh")),
    idea="for a thin C: the large operand read once, straight into registers, many loads on their way",
    parameters=(
        choice("THIN", "m", "n"),
        powers_of_two("TT", 1, 8),
        powers_of_two("LINES", 1, 16),
        powers_of_two("PACKS", 1, 4),
        choice("VECTOR", 1, 2, 4),
        powers_of_two("LANES", 8, 32),
        powers_of_two("WARPS_W", 1, 8),
        powers_of_two("WARPS_K", 1, 32),
        powers_of_two("BK", 32, 16384),
        choice("AHEAD", 1, 2, 4),
        choice("BLOCKS", 0, *range(2, MOST_BLOCKS + 1, 2)),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        Constraint(
            "asynchronous copies need compute capability 8.0",
            lambda p, d, c: (d.compute_capability >= 80) & (c.BK > 0),
        ),
        for_speed(
            "BLOCKS is what the device runs at once, or 0",
            lambda p, d, c: (c.BLOCKS == 0) | (d.sm_count * c.BLOCKS_PER_SM == c.BLOCKS),
        ),
        for_speed(
            "C is thin and the wide operand large",
            lambda p, d, c: (
                (min(p.m, p.n) <= THIN_MOST)
                & (max(p.m, p.n) * p.k >= WIDE_LEAST)
                & (min(max(p.m, p.n), p.k) >= SIDE_LEAST)
                & (c.BK > 0)
            ),
        ),
        for_speed(
            "THIN is the shorter side of C",
            lambda p, d, c: (c.THIN == "m") == (p.m <= p.n),
        ),
        for_speed(
            "TT is the least that covers the thin side",
            lambda p, d, c: (_sides(p, c)[0] <= c.TT) & (2 * _sides(p, c)[0] > c.TT),
        ),
        Constraint(
            "a load moves 16 bytes at most",
            lambda p, d, c: DTYPE_BYTES[p.dtype] * c.VECTOR <= 16,
        ),
        Constraint(
            "stored lines of the wide operand are divisible by VECTOR",
            lambda p, d, c: _line(p, c) % c.VECTOR == 0,
        ),
        for_speed(
            "loads are as wide as alignment allows",
            lambda p, d, c: (2 * c.VECTOR * DTYPE_BYTES[p.dtype] > 16) | (_line(p, c) % (2 * c.VECTOR) != 0),
        ),
        Constraint(
            "all lanes lie side by side where neighbours in memory are neighbours in k",
            lambda p, d, c: (c.LANES == 32) | (_along_k(p, c) == 0),
        ),
        Constraint(
            "a block's share of k is a multiple of what its warps go through in AHEAD steps",
            lambda p, d, c: c.BK % (c.AHEAD * _step(p, c)) == 0,
        ),
        Constraint(
            "a thread has at most 128 registers of sums, and as many of pieces",
            lambda p, d, c: (
                (_sums(p, c) * DTYPE_BYTES[p.dtype] <= 512)
                & (c.LINES * c.PACKS * c.VECTOR * c.AHEAD * DTYPE_BYTES[p.dtype] <= 512)
            ),
        ),
        Constraint(
            "a block has no more threads than the device allows",
            lambda p, d, c: _threads(c) <= d.max_threads_per_block,
        ),
        for_speed(
            "a block has at least four warps",
            lambda p, d, c: _threads(c) >= 4 * d.warp_size,
        ),
        Constraint(
            "offsets within a tile fit into 32 bits",
            lambda p, d, c: c.LINES * p.k < 2**32,
        ),
        Constraint(
            "a share of the thin operand and the warps' sums fit into a block's shared memory",
            lambda p, d, c: _shared_bytes(p, c) + _static_bytes(c) <= d.shared_bytes_per_block,
        ),
        Constraint(
            "BLOCKS_PER_SM blocks fit into a multiprocessor's threads and shared memory",
            lambda p, d, c: (
                (_threads(c) * c.BLOCKS_PER_SM <= d.max_threads_per_sm)
                & (
                    (_shared_bytes(p, c) + _static_bytes(c) + d.shared_bytes_per_sm - d.shared_bytes_per_block)
                    * c.BLOCKS_PER_SM
                    <= d.shared_bytes_per_sm
                )
            ),
        ),
        Constraint(
            "sums, pieces and offsets fit into the registers that BLOCKS_PER_SM blocks leave",
            lambda p, d, c: (
                (_registers(p, c) <= _register_limit(d, c)) & (_registers(p, c) <= d.registers_per_thread)
            ),
        ),
        for_speed(
            "BLOCKS_PER_SM above 1 says how many blocks stay; they have enough warps between them",
            lambda p, d, c: (
                ((c.BLOCKS_PER_SM == 1) & (c.BLOCKS == 0))
                | ((c.BLOCKS > 0) & (_threads(c) * c.BLOCKS_PER_SM >= WARPS_LEAST * d.warp_size))
            ),
        ),
        for_speed(
            "blocks that do not stay come at most twice in turn where each has columns of its own",
            lambda p, d, c: (
                (c.BLOCKS > 0) | (_along_k(p, c) == 1) | (_groups(p, c) * _tiles(p, c) <= 2 * d.sm_count)
            ),
        ),
        for_speed(
            "a thread reads one piece of a line where it keeps that piece's columns, and some pieces at once",
            lambda p, d, c: (
                ((c.PACKS == 1) | (_along_k(p, c) == 1))
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
            "blocks lay down less of the thin operand than half of what there is of the wide one",
            lambda p, d, c: 2 * _blocks(p, c) * c.TT * c.BK <= _sides(p, c)[1] * p.k,
        ),
        for_speed(
            "sums of shares are fewer than an eighth of what there is of the wide operand",
            lambda p, d, c: 8 * c.TT * ceil_div(p.k, c.BK) <= p.k,
        ),
        for_speed(
            "enough of the wide operand is on its way to a multiprocessor",
            lambda p, d, c: _in_flight(p, d, c) >= IN_FLIGHT_LEAST,
        ),
    ),
    launch=_launch,
    defaults=_start("m", (4, 4, 1, 2, 4, 512)),
    starts=tuple(_starts()),
)
