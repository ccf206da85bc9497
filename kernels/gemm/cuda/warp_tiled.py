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
    Value,
    Workspace,
    ceil_div,
    choice,
)

#: Registers beside sums, fragments and the tile in flight: addresses, loop, what the compiler moves ahead.
OTHER_REGISTERS = 20
#: Sharing k beyond this many blocks for each multiprocessor only adds sums to be written and read again.
BLOCKS_PER_SM_AT_MOST = 5
#: Beyond so many waves of tiles the last one matters no more.
WAVES_AT_MOST = 40
#: Blocks that stay at the most: multiprocessors of the largest devices, times BLOCKS_PER_SM.
MOST_BLOCKS = 640
#: Counters of the blocks that share a tile of C.
MEETING_BYTES = 16
#: Sums of a thread from which on the order of work was seen to matter.
MANY_SUMS = 64


def _threads(c: Any) -> Any:
    return (c.BM // c.TM) * (c.BN // c.TN)


def _along_k(p: Problem) -> tuple[bool, bool]:
    """Whether neighbours of A, and of B, in memory are neighbours in k: they must be turned."""
    return p.layout[0] == "n", p.layout[1] == "t"


def _widths(p: Problem, c: Any) -> list[Any]:
    """Elements of a copy of A and of B: VECTOR, or one where copying turns the operand."""
    relayed = c.TURN == "relay"
    return [1 + (c.VECTOR - 1) * ((1 - along) + along * relayed) for along in _along_k(p)]


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES tiles of A and of B; of a relayed operand two, and STAGES relays. Turned ones are skewed."""
    size = DTYPE_BYTES[p.dtype]
    elements = 0
    for along, width, span in zip(_along_k(p), _widths(p, c), (c.BM, c.BN), strict=True):
        wanted, least = 32 * width // c.BK, 16 // size
        skew = along * c.BK // width * (wanted * (wanted > least) + least * (wanted <= least))
        relay = along * (c.TURN == "relay")
        tile, extra = span * c.BK + skew, span * c.BK * relay
        elements = elements + tile * (c.STAGES + relay * (2 - c.STAGES)) + extra * c.STAGES
    return size * elements


def _copies(p: Problem, c: Any) -> tuple[Any, Any]:
    """Copies per tile of A and of B."""
    a, b = _widths(p, c)
    return c.BM * c.BK // a, c.BN * c.BK // b


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: sums, two fragments, addresses of copies."""
    words = DTYPE_BYTES[p.dtype] // 4
    values = c.TM * c.TN + 2 * (c.TM + c.TN)
    return words * values + 2 * sum(_copies(p, c)) // _threads(c) + OTHER_REGISTERS


def _register_limit(d: Any, c: Any) -> Any:
    return d.registers_left(_threads(c), c.BLOCKS_PER_SM)


def _left_over(p: Problem, unit: Any) -> Any:
    """Elements that the rows of A and B have over multiples of the unit."""
    return sum(each.shape[1] % unit for each in p.inputs)


def _padded(p: Problem, c: Any) -> tuple[Padded, ...]:
    """A and B with k, and their rows, padded to multiples of PITCH."""
    if c.PITCH == 1:
        return ()
    along = _along_k(p)
    m, n, k = (ceil_div(size, c.PITCH) * c.PITCH for size in (p.m, p.n, p.k))
    return (
        Padded("a", (p.m, k) if along[0] else (k, m)),
        Padded("b", (p.n, k) if along[1] else (k, n)),
    )


def _tiles(p: Problem, c: Any) -> Any:
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


def _workspace(p: Problem, c: Any) -> Workspace | None:
    """Counters of each tile of C, then the sums of blocks that share tiles."""
    if c.SPLIT_K == 1 and c.BLOCKS == 0:
        return None
    counters = ceil_div(MEETING_BYTES * _tiles(p, c), 256) * 256
    sums = 2 * c.BLOCKS if c.BLOCKS else _tiles(p, c) * c.SPLIT_K
    return Workspace(counters + sums * (c.BM * c.BN * DTYPE_BYTES[p.dtype]), counters)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(
        grid=(c.BLOCKS,) if c.BLOCKS else (_tiles(p, c), c.SPLIT_K),
        block=(_threads(c),),
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
    source=Path("warp_tiled.cu"),
    includes=(Path("copies.cuh"), Path("lanes.cuh"), Path("tiles.cuh"), Path("sharing.cuh")),
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
        Constraint(
            "an asynchronous copy moves 16 bytes at most", lambda p, d, c: DTYPE_BYTES[p.dtype] * c.VECTOR <= 16
        ),
        Constraint(
            "asynchronous copies need compute capability 8.0",
            lambda p, d, c: (d.compute_capability >= 80) & (c.STAGES > 0),
        ),
        Constraint(
            "a block's tile is made of whole warp tiles of LANES_M * TM by 32 / LANES_M * TN",
            lambda p, d, c: (c.BM % (c.LANES_M * c.TM) == 0) & (c.BN % (32 // c.LANES_M * c.TN) == 0),
        ),
        Constraint(
            "a block has at least two warps and no more threads than the device allows",
            lambda p, d, c: (_threads(c) >= 2 * d.warp_size) & (_threads(c) <= d.max_threads_per_block),
        ),
        Constraint(
            "every thread makes the same number of copies of both tiles",
            lambda p, d, c: (_copies(p, c)[0] % _threads(c) == 0) & (_copies(p, c)[1] % _threads(c) == 0),
        ),
        Constraint(
            "the rows of A and B are divisible by VECTOR, padded or not, so that wide reads are aligned",
            lambda p, d, c: (c.PITCH % c.VECTOR == 0) | (_left_over(p, c.VECTOR) == 0),
        ),
        Constraint(
            "every one of SPLIT_K blocks has a tile of k",
            lambda p, d, c: ceil_div(p.k, c.BK) >= c.SPLIT_K,
        ),
        Constraint(
            "k is shared only among as many blocks as a few waves of the device's multiprocessors can be",
            lambda p, d, c: (c.SPLIT_K == 1) | (_tiles(p, c) * c.SPLIT_K <= BLOCKS_PER_SM_AT_MOST * d.sm_count),
            for_speed=True,
        ),
        Constraint(
            "k is shared by SPLIT_K blocks of a tile or by BLOCKS blocks of all, not by both",
            lambda p, d, c: (c.SPLIT_K == 1) | (c.BLOCKS == 0),
        ),
        Constraint(
            "every block that stays has a tile of k",
            lambda p, d, c: _tiles(p, c) * ceil_div(p.k, c.BK) >= c.BLOCKS,
        ),
        Constraint(
            "BLOCKS is what the device runs at once",
            lambda p, d, c: (c.BLOCKS == 0) | (d.sm_count * c.BLOCKS_PER_SM == c.BLOCKS),
            for_speed=True,
        ),
        Constraint(
            "blocks stay where the last wave of tiles is not whole, and one of few",
            lambda p, d, c: (
                (c.BLOCKS == 0)
                | (
                    (_tiles(p, c) % (c.BLOCKS + (c.BLOCKS == 0)) != 0)
                    & (_tiles(p, c) <= WAVES_AT_MOST * c.BLOCKS)
                )
            ),
            for_speed=True,
        ),
        Constraint(
            "TURN says something only where A or B is stored along k",
            lambda p, d, c: (c.TURN == "relay") | any(_along_k(p)),
            for_speed=True,
        ),
        Constraint(
            "ORDER, ARRIVE and UNTIE are worth trying where a thread has many sums",
            lambda p, d, c: (
                ((c.ORDER == "rows") & (c.ARRIVE == "end") & (c.UNTIE == 1)) | (c.TM * c.TN >= MANY_SUMS)
            ),
            for_speed=True,
        ),
        Constraint(
            "rows are padded only where that makes wide reads possible",
            lambda p, d, c: (c.PITCH == 1) | ((c.VECTOR == c.PITCH) & (_left_over(p, c.PITCH) > 0)),
            for_speed=True,
        ),
        Constraint(
            "the tile is less than twice as long as C in either direction, or the smallest",
            lambda p, d, c: ((2 * p.m > c.BM) | (c.BM == 32)) & ((2 * p.n > c.BN) | (c.BN == 32)),
            for_speed=True,
        ),
        Constraint(
            "STAGES stages of both tiles fit into the shared memory that a block may have",
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
            "sums, fragments and addresses of copies fit into the registers that BLOCKS_PER_SM blocks leave",
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
    defaults=DEFAULT,
    starts=(
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
