"""gemv on CUDA, own design: A at the speed of memory, in either layout."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Constraint, Kernel, Problem, Source, choice, powers_of_two
from tuner.declare.rules import access_elements, access_holds_an_element, block_registers_fit, for_speed

from ._rows import launch_of

#: Registers beside sums and loads on their way: addresses, loop.
OTHER_REGISTERS = 24


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: pieces of A and x in flight, sums, addresses of lines."""
    words = DTYPE_BYTES[p.dtype] // 4
    if p.layout == "t":
        return words * (c.ROWS * (access_elements(p, c) + 1) + access_elements(p, c)) + OTHER_REGISTERS
    return words * (c.UNROLL * access_elements(p, c) * (c.ROWS + 1) + c.ROWS) + 2 * c.ROWS + OTHER_REGISTERS


def _line(p: Problem) -> int:
    """Elements of a stored line of A."""
    return p.m if p.layout == "t" else p.n


def _tile(p: Problem, c: Any) -> dict[str, Any]:
    return {"m": c.SPAN * access_elements(p, c) if p.layout == "t" else c.BLOCK // c.SPAN * c.ROWS}


KERNEL = Kernel(
    operation="gemv",
    name="streaming",
    target="cuda",
    source=Source(Path("streaming.cu"), includes=(Path("../../access.cuh"),)),
    idea="128-bit loads, many in flight; several rows, or partial sums of columns, per block",
    parameters=(
        powers_of_two("BLOCK", 64, 1024),
        powers_of_two("SPAN", 4, 1024),
        choice("ROWS", 1, 2, 4, 8, 16),
        choice("UNROLL", 1, 2, 4, 8),
        choice("ACCESS_BYTES", 4, 8, 16),
    ),
    constraints=(
        Constraint("a block has SPAN threads or more", lambda p, d, c: c.SPAN <= c.BLOCK),
        access_holds_an_element(),
        Constraint(
            "a stored line of A is divisible by the elements of a load, so that wide ones are aligned",
            lambda p, d, c: _line(p) % access_elements(p, c) == 0,
        ),
        block_registers_fit("sums, and pieces in flight,", _registers, lambda p, c: c.BLOCK),
        for_speed(
            "only kernels for A by rows unroll: columns have ROWS for that",
            lambda p, d, c: (c.UNROLL == 1) | (p.layout == "n"),
        ),
        for_speed(
            "SPAN threads are less than twice as long as a stored line, or the fewest",
            lambda p, d, c: (c.SPAN == 4) | (2 * _line(p) > c.SPAN * access_elements(p, c)),
        ),
    ),
    launch=lambda p, c: launch_of(p, c, _tile(p, c)),
    tiles=_tile,
    starts=(
        {"BLOCK": 512, "SPAN": 16, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
        {"BLOCK": 256, "SPAN": 32, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 8},
        {"BLOCK": 256, "SPAN": 256, "ROWS": 1, "UNROLL": 4, "ACCESS_BYTES": 16},
        {"BLOCK": 1024, "SPAN": 32, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
        {"BLOCK": 256, "SPAN": 32, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
        {"BLOCK": 512, "SPAN": 8, "ROWS": 4, "UNROLL": 1, "ACCESS_BYTES": 16},
    ),
)
