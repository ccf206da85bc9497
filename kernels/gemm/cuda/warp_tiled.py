"""gemm on CUDA: as register_tiled, with STAGES tiles in shared memory and asynchronous copies."""

from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    Config,
    Constraint,
    Kernel,
    Launch,
    Padded,
    Problem,
    Scope,
    Source,
    Value,
    Workspace,
    ceil_div,
    choice,
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

from ._operands import ALIGNED, MOST_BLOCKS, along_k, grouped, lines, tile_within_c
from ._rules import blocks_run_at_once, residency_limits_registers
from ._tiles import registers, threads, tile, tiles, whole_warp_tiles

#: Sharing k beyond this many blocks for each multiprocessor only adds sums to be written and read again.
BLOCKS_PER_SM_AT_MOST = 5
#: Beyond this number of waves of tiles the last one does not matter.
WAVES_AT_MOST = 40
#: Counters of the blocks that share a tile of C.
MEETING_BYTES = 16
#: Sums of a thread from which on the order of work was seen to matter.
MANY_SUMS = 64


def _widths(p: Problem, c: Any) -> list[Any]:
    """Elements of a copy of A and of B: VECTOR, or one where copying turns the operand."""
    relayed = c.TURN == "relay"
    return [select(relayed, c.VECTOR, 1) if along else c.VECTOR for along in along_k(p)]


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES tiles of A and of B; of a relayed operand two, and STAGES relays. Turned ones are skewed."""
    elements = 0
    for along, width, span in zip(along_k(p), _widths(p, c), (c.BM, c.BN), strict=True):
        tile = span * c.BK + along * c.BK // width * larger(32 * width // c.BK, grouped(p))
        relayed = 2 * tile + c.STAGES * span * c.BK
        elements = elements + select((c.TURN == "relay") & (along == 1), relayed, c.STAGES * tile)
    return DTYPE_BYTES[p.dtype] * elements


def _copies(p: Problem, c: Any) -> tuple[Any, Any]:
    """Copies per tile of A and of B."""
    a, b = _widths(p, c)
    return c.BM * c.BK // a, c.BN * c.BK // b


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: no tile is in flight, but each copy has an address."""
    return registers(p, c, 0, 2 * sum(_copies(p, c)) // threads(p, c))


def _left_over(p: Problem, unit: Any) -> Any:
    """Elements that the rows of A and B have over multiples of the unit."""
    return sum(line % unit for line in lines(p))


def _padded(p: Problem, c: Any) -> tuple[Padded, ...]:
    """A and B with k, and their rows, padded to multiples of PITCH."""
    if c.PITCH == 1:
        return ()
    along = along_k(p)
    m, n, k = (ceil_div(size, c.PITCH) * c.PITCH for size in (p.m, p.n, p.k))
    return (
        Padded("a", (p.m, k) if along[0] else (k, m)),
        Padded("b", (p.n, k) if along[1] else (k, n)),
    )


def _workspace(p: Problem, c: Any) -> Workspace | None:
    """Counters of each tile of C, then the sums of blocks that share tiles."""
    if c.SPLIT_K == 1 and c.BLOCKS == 0:
        return None
    counters = ceil_div(MEETING_BYTES * tiles(p, c), ALIGNED) * ALIGNED
    sums = 2 * c.BLOCKS if c.BLOCKS else tiles(p, c) * c.SPLIT_K
    return Workspace(counters + sums * (c.BM * c.BN * DTYPE_BYTES[p.dtype]), counters)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(
        grid=(c.BLOCKS,) if c.BLOCKS else (tiles(p, c), c.SPLIT_K),
        block=(threads(p, c),),
        shared_bytes=_shared_bytes(p, c),
        padded=_padded(p, c),
        workspace=_workspace(p, c),
    )


DEFAULT: dict[str, Value] = {
    "BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "LANES_M": 8, "STAGES": 3, "VECTOR": 4, "SWATH": 8,
    "BLOCKS_PER_SM": 1, "SPLIT_K": 1, "BLOCKS": 0, "TURN": "relay", "PITCH": 1, "ORDER": "rows",
    "ARRIVE": "end", "UNTIE": 1,
}  # fmt: skip

#: Two thirds of a step's reads are of A, whose elements stay in place while those of B pass by.
TALL = DEFAULT | {"BN": 256, "BK": 8, "TM": 16, "LANES_M": 4, "ORDER": "snake"}
#: As many blocks as an H100 or H200 runs at once: legal there only, and a start nowhere else.
STAYING: dict[str, Value] = {"BLOCKS": 132, "SWATH": 1, "ARRIVE": "middle"}

KERNEL = Kernel(
    operation="gemm",
    name="warp_tiled",
    target="cuda",
    source=Source(
        Path("warp_tiled.cu"),
        includes=(
            Path("epilogue.cuh"),
            Path("copies.cuh"),
            Path("lanes.cuh"),
            Path("tiles.cuh"),
            Path("sharing.cuh"),
        ),
    ),
    scope=Scope(epilogues=True),
    idea="register_tiled with asynchronous copies, several tiles ahead",
    parameters=(
        # First, since the device leaves few of their values: all else is then combined with those alone.
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
        choice("BLOCKS", 0, *range(2, MOST_BLOCKS + 1, 2)),
        choice("BM", 32, 64, 96, 128, 192, 256),
        choice("BN", 32, 64, 96, 128, 192, 256),
        choice("BK", 8, 16, 32),
        choice("TM", 4, 8, 12, 16),
        choice("TN", 4, 8, 12, 16),
        choice("LANES_M", 4, 8),
        choice("STAGES", 2, 3, 4, 5),
        choice("VECTOR", 1, 2, 4),
        choice("SWATH", 1, 8, 16),
        choice("SPLIT_K", 1, 2, 4, 8, 16, 32, 64),
        choice("TURN", "copy", "relay"),
        choice("PITCH", 1, 4),
        choice("ORDER", "rows", "snake"),
        choice("ARRIVE", "end", "middle"),
        choice("UNTIE", 0, 1),
    ),
    constraints=(
        copy_at_most_16_bytes("VECTOR"),
        asynchronous_copies("STAGES"),
        whole_warp_tiles(),
        threads_fit(threads, least_warps=2),
        Constraint(
            "every thread makes the same number of copies of both tiles",
            lambda p, d, c: (_copies(p, c)[0] % threads(p, c) == 0) & (_copies(p, c)[1] % threads(p, c) == 0),
        ),
        Constraint(
            "the rows of A and B are divisible by VECTOR, padded or not, so that wide reads are aligned",
            lambda p, d, c: (c.PITCH % c.VECTOR == 0) | (_left_over(p, c.VECTOR) == 0),
        ),
        Constraint(
            "every one of SPLIT_K blocks has a tile of k",
            lambda p, d, c: ceil_div(p.k, c.BK) >= c.SPLIT_K,
        ),
        for_speed(
            "k is shared only among as many blocks as a few waves of the device's multiprocessors can be",
            lambda p, d, c: (c.SPLIT_K == 1) | (tiles(p, c) * c.SPLIT_K <= BLOCKS_PER_SM_AT_MOST * d.sm_count),
        ),
        Constraint(
            "k is shared by SPLIT_K blocks of a tile or by BLOCKS blocks of all, not by both",
            lambda p, d, c: (c.SPLIT_K == 1) | (c.BLOCKS == 0),
        ),
        Constraint(
            "every block that stays has a tile of k",
            lambda p, d, c: tiles(p, c) * ceil_div(p.k, c.BK) >= c.BLOCKS,
        ),
        blocks_run_at_once(),
        for_speed(
            "blocks stay where the last wave of tiles is not whole, and one of few",
            lambda p, d, c: (
                (c.BLOCKS == 0)
                | (
                    (tiles(p, c) % (c.BLOCKS + (c.BLOCKS == 0)) != 0)
                    & (tiles(p, c) <= WAVES_AT_MOST * c.BLOCKS)
                )
            ),
        ),
        for_speed(
            "TURN says something only where A or B is stored along k",
            lambda p, d, c: (c.TURN == "relay") | any(along_k(p)),
        ),
        for_speed(
            "ORDER, ARRIVE and UNTIE are worth trying where a thread has many sums",
            lambda p, d, c: (
                ((c.ORDER == "rows") & (c.ARRIVE == "end") & (c.UNTIE == 1)) | (c.TM * c.TN >= MANY_SUMS)
            ),
        ),
        for_speed(
            "rows are padded only where that makes wide reads possible",
            lambda p, d, c: (c.PITCH == 1) | ((c.VECTOR == c.PITCH) & (_left_over(p, c.PITCH) > 0)),
        ),
        tile_within_c(tile),
        shared_fits("STAGES stages of both tiles", _shared_bytes),
        blocks_fit(threads, _shared_bytes),
        registers_fit("sums, fragments and addresses of copies", _registers, threads),
        residency_limits_registers(threads),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BM, "n": c.BN, "k": p.k / c.SPLIT_K},
    starts=(
        DEFAULT,
        # Large products: the largest tile that leaves the sums in registers, in a loop that the cache holds.
        TALL | {"BM": 256, "BN": 128},
        TALL | {"ARRIVE": "middle"},
        TALL | STAYING,
        DEFAULT | {"BN": 256, "BK": 32, "TN": 16, "STAGES": 2, "UNTIE": 0},
        DEFAULT | {"BN": 256, "TN": 16, "LANES_M": 4, "ORDER": "snake"},
        # Rows that are not aligned: padded, or read element by element.
        TALL | STAYING | {"PITCH": 4},
        DEFAULT | {"BM": 64, "BN": 192, "BK": 8, "TN": 12, "LANES_M": 4, "SWATH": 1, "PITCH": 4},
        DEFAULT | {"BM": 96, "BN": 64, "BK": 8, "TM": 12, "LANES_M": 4, "VECTOR": 1, "TURN": "copy"},
        # Few tiles: small ones, and k shared.
        DEFAULT | {"BM": 64, "BN": 128, "TN": 4, "STAGES": 4, "BLOCKS_PER_SM": 2},
        DEFAULT | {"BM": 64, "BN": 256, "BK": 8, "STAGES": 4, "TURN": "copy", "ORDER": "snake", "SPLIT_K": 8},
        DEFAULT | {"BM": 64, "LANES_M": 4, "SPLIT_K": 4},
        TALL | {"ARRIVE": "middle", "SPLIT_K": 8},
        TALL | {"ARRIVE": "middle", "SPLIT_K": 16},
        TALL | {"ARRIVE": "middle", "SPLIT_K": 64},
        # Little k: small tiles, which write C while others load.
        DEFAULT | {"BM": 32, "BK": 8, "LANES_M": 4, "SWATH": 1},
    ),
)
