"""A user's own operation with a Numba kernel: the squared distances between all pairs of n points.

    tuner tune examples/distances.py --set n=2000 --set axes=16 --device cpu --seconds 30

`points` has a row for each coordinate axis (axes x n), `distances` is n x n.
"""

# ruff: noqa: SIM300
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner import (
    Baseline,
    Constraint,
    Kernel,
    Operation,
    Problem,
    Source,
    Tensor,
    Work,
    ceil_div,
    powers_of_two,
)


def tensors(p: Problem) -> tuple[Tensor, ...]:
    """The arrays that a kernel takes, in order."""
    return (
        Tensor("points", (p.axes, p.n), p.dtype),
        Tensor("distances", (p.n, p.n), p.dtype, output=True),
    )


def work(p: Problem) -> Work:
    """A difference, a square and a sum per pair and axis; every array moves once."""
    return Work(flops=3.0 * p.n * p.n * p.axes, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def squared_distances(xp: Any, points: Any) -> Any:
    """One axis after the other, in the dtype of the points, so that no n x n x axes array is made."""
    total = xp.zeros((points.shape[1], points.shape[1]), points.dtype)
    for axis in points:
        total += (axis[:, None] - axis[None, :]) ** 2
    return total


def reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    """The right answer, in float64."""
    return squared_distances(xp, arrays["points"].astype(xp.float64))


def numpy_answer(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """What to compare speed with: the same by whole arrays."""
    arrays["distances"][...] = squared_distances(xp, arrays["points"])


OPERATION = Operation(
    name="distances",
    dims=("n", "axes"),
    tensors=tensors,
    work=work,
    reference=reference,
    terms=lambda p: p.axes,
    baselines={"cpu": Baseline("NumPy", numpy_answer)},
)

KERNEL = Kernel(
    operation="distances",
    name="tiles",
    target="cpu",
    source=Source(Path("distances.numba.py")),
    idea="a band of rows against a tile of points that stays in the cache; sums in a small array",
    parameters=(
        powers_of_two("TILE", 32, 4096),
        powers_of_two("ROWS", 1, 64),
        powers_of_two("THREADS", 1, 256),
    ),
    constraints=(
        Constraint("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1)),
        Constraint(
            "a band of rows for each thread",
            lambda p, d, c: c.THREADS <= ceil_div(p.n, c.ROWS),
            for_speed=True,
        ),
        Constraint(
            "a tile is less than twice as long as a row",
            lambda p, d, c: (c.TILE == 32) | (c.TILE < 2 * p.n),
            for_speed=True,
        ),
    ),
    threads="THREADS",
    starts=({"TILE": 1024, "ROWS": 16, "THREADS": 1},),
)
