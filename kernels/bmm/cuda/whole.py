"""bmm on CUDA for small matrices: those of a block are one piece of memory, in wide accesses of any shape."""

import math
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
    ceil_div,
    choice,
    powers_of_two,
)
from tuner.declare.rules import ASYNCHRONOUS_COPIES_SINCE, for_speed, select, shared_fits

GEMM = Path("../../gemm/cuda")
#: Bytes of one wide access.
WIDE_BYTES = 16


def _elements(p: Problem, c: Any) -> tuple[Any, ...]:
    """Of A, B and C that a block has; of an operand that all products share, one matrix."""
    a, b = (1 if p.layout.endswith(suffix) else c.MATRICES for suffix in ("-a", "-b"))
    return p.m * p.k * a, p.k * p.n * b, c.MATRICES * p.m * p.n


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Each piece ends at a multiple of 16 bytes."""
    size = DTYPE_BYTES[p.dtype]
    return sum((ceil_div(count * size, WIDE_BYTES) * WIDE_BYTES for count in _elements(p, c)), 0)


def _items(p: Problem, c: Any) -> Any:
    """Threads' tiles of a block."""
    return c.MATRICES * ceil_div(p.m, c.TM) * ceil_div(p.n, c.TN)


def _is_whole(p: Problem, c: Any) -> Any:
    """Whether what blocks have begins at multiples of 16 bytes, or is there once."""
    a, b = (1 if p.layout.endswith(suffix) else 0 for suffix in ("-a", "-b"))
    size, whole = DTYPE_BYTES[p.dtype] * c.MATRICES, True
    for count, once in ((p.m * p.k, a), (p.k * p.n, b), (p.m * p.n, 0)):
        whole = whole & ((count * size % WIDE_BYTES == 0) | (once == 1))
    return whole


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(ceil_div(p.batch, c.MATRICES),), block=(c.THREADS,), shared_bytes=_shared_bytes(p, c))


def _start(matrices: int, tm: int, tn: int, threads: int, vector: int) -> dict[str, int]:
    return {"MATRICES": matrices, "TM": tm, "TN": tn, "THREADS": threads, "VECTOR": vector}


KERNEL = Kernel(
    operation="bmm",
    name="whole",
    target="cuda",
    source=Source(
        Path("whole.cu"),
        includes=(
            Path("../../access.cuh"), *(GEMM / f"{name}.cuh" for name in ("half", "stored", "copies")),
        ),
    ),
    idea="neighbouring products of a block are one piece of memory: wide accesses for matrices of any shape",
    scope=Scope(dtypes=("float32", "float64", "float16", "bfloat16")),
    parameters=(
        powers_of_two("MATRICES", 1, 64),
        choice("TM", 1, 2, 3, 4, 6, 8),
        choice("TN", 1, 2, 3, 4, 6, 8),
        choice("THREADS", 64, 128, 256),
        powers_of_two("VECTOR", 1, 8),
    ),
    constraints=(
        Constraint(
            "copies past registers need compute capability 8.0",
            lambda p, d, c: d.compute_capability >= ASYNCHRONOUS_COPIES_SINCE,
        ),
        Constraint(
            "a wide access has 16 bytes",
            lambda p, d, c: (c.VECTOR == 1) | (c.VECTOR * DTYPE_BYTES[p.dtype] == WIDE_BYTES),
        ),
        Constraint(
            "what a block has begins at multiples of 16 bytes, or is copied one by one",
            lambda p, d, c: (c.VECTOR == 1) | _is_whole(p, c),
        ),
        for_speed(
            "elements are copied one by one only where there is no other way",
            lambda p, d, c: (c.VECTOR > 1) | (select(_is_whole(p, c), 1, 0) == 0),
        ),
        shared_fits("all of a block's A, B and C", _shared_bytes),
        for_speed(
            "two blocks at least fit into a multiprocessor's shared memory",
            lambda p, d, c: 2 * (_shared_bytes(p, c) + 1024) <= d.shared_bytes_per_sm,
        ),
        for_speed(
            "a thread's tile is no larger than C, and half of the threads have one",
            lambda p, d, c: (
                ((c.TM == 1) | (p.m >= c.TM)) & ((c.TN == 1) | (p.n >= c.TN)) & (2 * _items(p, c) >= c.THREADS)
            ),
        ),
        for_speed(
            "no more matrices than there are", lambda p, d, c: (c.MATRICES == 1) | (p.batch >= c.MATRICES),
        ),
        for_speed("sums stay in registers", lambda p, d, c: c.TM * c.TN <= 36),
    ),
    launch=_launch,
    tiles=lambda p, c: {"batch": c.MATRICES, "m": math.inf, "n": math.inf},
    starts=tuple(
        _start(matrices, tm, tn, threads, vector)
        for matrices, tm, tn, threads in (
            (4, 4, 4, 128), (8, 4, 4, 128), (16, 2, 4, 128), (32, 2, 2, 128), (16, 3, 3, 128), (8, 2, 3, 256),
            (1, 4, 4, 64), (1, 4, 8, 128), (2, 4, 4, 64),
        )
        for vector in (4, 8, 2, 1)
    ),
)  # fmt: skip
