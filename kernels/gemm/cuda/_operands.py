"""Rules that gemm kernels on CUDA share for A and B: how they are stored, and the needs of operands.cuh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner import DTYPE_BYTES, Constraint, Padded, Problem, ceil_div
from tuner.declare.rules import Quantity, for_speed, select, smaller

from ._rules import divisible_lines, widest_vector

#: A workspace's sums begin at a multiple of this many bytes.
ALIGNED = 256
#: Blocks that stay at the most: multiprocessors of the largest devices, times BLOCKS_PER_SM.
MOST_BLOCKS = 640
#: Edges of a block's tile that are as small as need be.
LEAST_TILE = 32
#: Bytes of sums that a thread may hold: 128 registers.
SUMS_MOST_BYTES = 512


def along_k(p: Problem) -> tuple[int, int]:
    """1 for A and for B if neighbours in memory are neighbours in k, else 0."""
    return int(p.layout[0] == "n"), int(p.layout[1] == "t")


def lines(p: Problem) -> tuple[int, int]:
    """Elements of a stored row of A and of B."""
    a, b = p.inputs[:2]
    return a.shape[1], b.shape[1]


def padded_rows(p: Problem, c: Any) -> tuple[Padded, ...]:
    """All three matrices with rows padded to multiples of PITCH; none if PITCH is 1."""
    return Padded.rows_of(p.tensors, c.PITCH) if c.PITCH > 1 else ()


def finished_as_they_lie() -> Constraint:
    """An epilogue's operands are dense, as a result that it is applied to."""
    return Constraint(
        "an epilogue's operands are read as they lie: rows are not padded",
        lambda p, d, c: (p.epilogue == "") | (c.PITCH == 1),
    )


def grouped(p: Problem) -> int:
    """Elements of a 128-bit access: GROUPED of the sources."""
    return 16 // DTYPE_BYTES[p.dtype]


def sum_bytes(p: Problem) -> int:
    """Bytes of a sum: elements of 16 bits are added up in float32."""
    return DTYPE_BYTES[p.operation.sums.get(p.dtype, p.dtype)]


def turned(c: Any) -> Any:
    """1 if operands along k are turned by copying, else 0."""
    return select(c.TURN == "copy", 1, 0)


@dataclass(frozen=True)
class Operand:
    """An operand as operands.cuh moves it; numbers, or arrays of one for each config.

    Attributes:
        span: Rows of a tile (columns of op(B)).
        count: Of these, what a thread reads.
        along_k: 1 if neighbours in memory are neighbours in k, else 0.
        vector: Elements of a copy.
    """

    span: Any
    count: Any
    along_k: Any
    vector: Any


def a_and_b(p: Problem, c: Any, tile: tuple[Any, Any]) -> tuple[Operand, Operand]:
    """A and B of a kernel with parameters TM, TN, VECTOR_A, VECTOR_B.

    Args:
        p: The problem.
        c: The config.
        tile: Rows and columns of a tile of C.
    """
    (bm, bn), (a, b) = tile, along_k(p)
    return Operand(bm, c.TM, a, c.VECTOR_A), Operand(bn, c.TN, b, c.VECTOR_B)


def tile_elements(p: Problem, c: Any, operands: Sequence[Operand]) -> Any:
    """Elements of shared memory of a tile of all operands; lines of those along k are longer by a group."""
    longer = sum(each.along_k * select(turned(c) == 1, c.BK, each.span) for each in operands)
    return c.BK * sum(each.span for each in operands) + grouped(p) * longer


def copies(c: Any, operands: Sequence[Operand], group: Any) -> Any:
    """Copies that each of a group of threads makes for a tile of all operands."""
    return sum(
        ceil_div(each.span * c.BK, select(each.along_k * turned(c) == 1, 1, each.vector) * group)
        for each in operands
    )


def operand_registers(p: Problem, c: Any, operands: tuple[Operand, Operand], group: Any, sums: Any) -> Any:
    """Registers of a thread, estimated: sums, one operand's values and two of the other, offsets of copies.

    Args:
        p: The problem.
        c: The config.
        operands: Both.
        group: Threads that copy a tile together.
        sums: Sums of a thread.
    """
    one, other = operands
    several = (one.along_k + other.along_k > 0) & (turned(c) == 0)
    values = select(several, grouped(p) * (smaller(one.count, other.count) + 2), one.count + other.count)
    return DTYPE_BYTES[p.dtype] // 4 * (sums + values) + copies(c, operands, group)


def aligned_lines() -> Constraint:
    """Copies of VECTOR_A and VECTOR_B elements are aligned in every stored row."""
    return divisible_lines({"A": "VECTOR_A", "B": "VECTOR_B"}, lambda p, c: lines(p))


def widest_copies(what: str, vector: str, length: Quantity, most: Quantity = lambda p, c: 4) -> Constraint:
    """Copies of an operand are as wide as they can be.

    Args:
        what: The operand, in words.
        vector: The parameter that is the elements of a copy.
        length: Elements of a stored line.
        most: The widest copy that is allowed, in elements.
    """
    return for_speed(
        f"copies of {what} are as wide as its alignment allows",
        lambda p, d, c: widest_vector(p, length(p, c), most(p, c)) == getattr(c, vector),
    )


def sums_fit(sums: Quantity) -> Constraint:
    """A thread's sums leave registers for everything else."""
    return Constraint(
        "a thread has at most 128 registers of sums",
        lambda p, d, c: sums(p, c) * sum_bytes(p) <= SUMS_MOST_BYTES,
    )


def order_counts(where: Quantity) -> Constraint:
    """The order of products is a choice only if a condition holds."""
    return for_speed(
        "the order of products is a choice only if arithmetic is the limit",
        lambda p, d, c: (c.ORDER == "rows") | where(p, c),
    )


def turning_counts(where: Quantity = lambda p, c: True) -> Constraint:
    """An operand is turned by copying only if there is one to turn and a further condition holds."""
    return for_speed(
        "copies turn only if there is an operand to turn, and enough arithmetic for registers to matter",
        lambda p, d, c: (c.TURN == "read") | ((sum(along_k(p)) > 0) & where(p, c)),
    )


def tile_within_c(tile: Callable[[Any], tuple[Any, Any]]) -> Constraint:
    """A block's tile does not reach far beyond C.

    Args:
        tile: Config -> rows and columns of a block's tile.
    """

    def within(p: Problem, d: Any, c: Any) -> Any:
        rows, columns = tile(c)
        return ((2 * p.m > rows) | (rows <= LEAST_TILE)) & ((2 * p.n > columns) | (columns <= LEAST_TILE))

    return for_speed(
        "the tile is less than twice as long as C in either direction, or one of the smallest", within
    )


def float32_alone() -> Constraint:
    """What emulates FP32 takes nothing else."""
    return Constraint("elements are float32", lambda p, d, c: p.dtype == "float32")


def k_shared_by_few_tiles(tiles: Callable[[Problem, Any], Any]) -> Constraint:
    """SPLIT_K is above 1 only where tiles do not fill the device, and no larger than fills it.

    Args:
        tiles: Tiles of C, for a problem and a config.
    """
    return for_speed(
        "k is shared where tiles are fewer than multiprocessors",
        lambda p, d, c: (c.SPLIT_K == 1) | (tiles(p, c) * (c.SPLIT_K // 2) < d.sm_count),
    )
