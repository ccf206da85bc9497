"""Rules of gemm's kernels on CUDA for accesses, residency and offsets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner import DTYPE_BYTES, Constraint
from tuner.declare.rules import WIDEST_ACCESS_BYTES, Quantity, for_speed, select


def widest_vector(p: Any, length: Any, most: Any = 4) -> Any:
    """Returns the elements of the widest access that is aligned in all stored lines of this length: 1 to 8.

    Args:
        p: The problem, for its dtype.
        length: Elements of a stored line.
        most: Widest access allowed, in elements.
    """
    widest: Any = 1
    for vector in (2, 4, 8):
        fits = (
            (length % vector == 0) & (vector * DTYPE_BYTES[p.dtype] <= WIDEST_ACCESS_BYTES) & (vector <= most)
        )
        widest = select(fits, vector, widest)
    return widest


def divisible_lines(vectors: Mapping[str, str], lengths: Callable[[Any, Any], Sequence[Any]]) -> Constraint:
    """Stored lines consist of whole vectors, so that wide accesses are aligned in every line.

    Args:
        vectors: Tensor, in words -> the parameter that sets the elements of an access to it.
        lengths: ``(problem, config)`` -> elements of a stored line of each tensor.
    """

    def fit(p: Any, d: Any, c: Any) -> Any:
        fits: Any = True
        for name, length in zip(vectors.values(), lengths(p, c), strict=True):
            fits = fits & (length % getattr(c, name) == 0)
        return fits

    each = ", those of ".join(f"{tensor} by {name}" for tensor, name in vectors.items())
    return Constraint(f"stored lines of {each.replace(' by ', ' are divisible by ', 1)}", fit)


def offsets_fit_32_bits(lines: Quantity, *dims: str) -> Constraint:
    """Offsets within a tile that a source counts in 32 bits stay below 2**32.

    Args:
        lines: Lines of a tile that offsets span together.
        dims: Dims that may set the length of such a line.
    """

    def fit(p: Any, d: Any, c: Any) -> Any:
        return lines(p, c) * max(getattr(p, dim) for dim in dims) < 2**32

    return Constraint("offsets within a tile fit into 32 bits", fit)


def padded_only_where_needed() -> Constraint:
    """Rows are padded to multiples of PITCH only if some are not such multiples already."""
    return for_speed(
        "rows are padded only if some do not have such a length already",
        lambda p, d, c: (
            (c.PITCH == 1)
            | (sum(tensor.shape[1] % c.PITCH for tensor in p.tensors if len(tensor.shape) == 2) > 0)
        ),
    )


def enough_warps(threads: Quantity, least: int) -> Constraint:
    """BLOCKS_PER_SM blocks give a multiprocessor enough warps to hide latencies."""
    return for_speed(
        f"a multiprocessor has at least {least} warps",
        lambda p, d, c: threads(p, c) * c.BLOCKS_PER_SM >= least * d.warp_size,
    )


def blocks_run_at_once() -> Constraint:
    """BLOCKS, if not 0, is the number of blocks that the device runs at once."""
    return for_speed(
        "BLOCKS is the number of blocks that the device runs at once, or 0",
        lambda p, d, c: (c.BLOCKS == 0) | (d.sm_count * c.BLOCKS_PER_SM == c.BLOCKS),
    )


def residency_limits_registers(threads: Quantity) -> Constraint:
    """BLOCKS_PER_SM is above 1 only if that changes the compiled code."""
    return for_speed(
        "BLOCKS_PER_SM above 1 lowers the register limit, else it changes nothing",
        lambda p, d, c: (
            (c.BLOCKS_PER_SM == 1) | (d.registers_left(threads(p, c), c.BLOCKS_PER_SM) < d.registers_per_thread)
        ),
    )
