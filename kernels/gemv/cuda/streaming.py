"""gemv on CUDA, our own: A at the speed of memory, in either layout."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, ceil_div, choice, powers_of_two

#: Registers beside sums and loads on their way: addresses, loop.
OTHER_REGISTERS = 24


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: pieces of A and x on their way, sums, addresses of lines."""
    words = DTYPE_BYTES[p.dtype] // 4
    if p.layout == "t":
        return words * (c.ROWS * (_vector(p, c) + 1) + _vector(p, c)) + OTHER_REGISTERS
    return words * (c.UNROLL * _vector(p, c) * (c.ROWS + 1) + c.ROWS) + 2 * c.ROWS + OTHER_REGISTERS


def _vector(p: Problem, c: Any) -> Any:
    """Elements of one load; at least one, so that rules can be asked about illegal configs too."""
    size = DTYPE_BYTES[p.dtype]
    return (c.ACCESS_BYTES + size - 1) // size


def _line(p: Problem) -> int:
    """Elements of a stored line of A."""
    return p.m if p.layout == "t" else p.n


def _launch(p: Problem, c: Config) -> Launch:
    rows = c.SPAN * _vector(p, c) if p.layout == "t" else c.BLOCK // c.SPAN * c.ROWS
    return Launch(grid=(ceil_div(p.m, rows),), block=(c.BLOCK,))


KERNEL = Kernel(
    operation="gemv",
    name="streaming",
    target="cuda",
    source=Path("streaming.cu"),
    idea="128-bit loads, many on their way; several rows, or partial sums of columns, per block",
    parameters=(
        powers_of_two("BLOCK", 64, 1024),
        powers_of_two("SPAN", 4, 1024),
        choice("ROWS", 1, 2, 4, 8, 16),
        choice("UNROLL", 1, 2, 4, 8),
        choice("ACCESS_BYTES", 4, 8, 16),
    ),
    constraints=(
        Constraint("a block has SPAN threads or more", lambda p, d, c: c.SPAN <= c.BLOCK),
        Constraint("a load is of one element or more", lambda p, d, c: DTYPE_BYTES[p.dtype] <= c.ACCESS_BYTES),
        Constraint(
            "a stored line of A is divisible by the elements of a load, so that wide ones are aligned",
            lambda p, d, c: _line(p) % _vector(p, c) == 0,
        ),
        Constraint(
            "what is on its way fits into the registers of a thread when one block is resident",
            lambda p, d, c: (
                (_registers(p, c) * c.BLOCK <= d.registers_per_block)
                & (_registers(p, c) <= d.registers_per_thread)
            ),
        ),
        Constraint(
            "only rows are unrolled along: columns have ROWS for that",
            lambda p, d, c: (c.UNROLL == 1) | (p.layout == "n"),
            for_speed=True,
        ),
        Constraint(
            "SPAN threads are less than twice as long as a stored line, or the fewest",
            lambda p, d, c: (c.SPAN == 4) | (2 * _line(p) > c.SPAN * _vector(p, c)),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={"BLOCK": 512, "SPAN": 16, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
    starts=(
        {"BLOCK": 256, "SPAN": 32, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 8},
        {"BLOCK": 256, "SPAN": 256, "ROWS": 1, "UNROLL": 4, "ACCESS_BYTES": 16},
        {"BLOCK": 1024, "SPAN": 32, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
        {"BLOCK": 256, "SPAN": 32, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
        {"BLOCK": 512, "SPAN": 8, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
    ),
)
