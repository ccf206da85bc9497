"""A user's own operation with a CUDA kernel: a signal of n samples smoothed by a triangular window.

    tuner tune examples/smooth.py --set n=10000000 --set radius=8 --seconds 30

smoothed[i] = sum over |d| <= radius of (radius + 1 - |d|) / (radius + 1)^2 * signal[i + d], zero past the ends.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    Baseline,
    Config,
    Constraint,
    Kernel,
    Launch,
    Operation,
    Problem,
    Scalar,
    Source,
    Tensor,
    Work,
    ceil_div,
    choice,
    powers_of_two,
)

C_NAMES = {"float32": "float", "float64": "double"}


def tensors(p: Problem) -> tuple[Tensor, ...]:
    """The arrays that the kernel takes, in order."""
    return (Tensor("signal", (p.n,), p.dtype), Tensor("smoothed", (p.n,), p.dtype, output=True))


def work(p: Problem) -> Work:
    """A product and a sum per neighbour; every array moves once."""
    return Work(flops=2.0 * (2 * p.radius + 1) * p.n, bytes=float(sum(tensor.bytes for tensor in p.tensors)))


def window(xp: Any, p: Problem, dtype: Any) -> Any:
    """The 2 * radius + 1 weights; they sum to 1."""
    rising = xp.arange(1, p.radius + 2, dtype=dtype) / (p.radius + 1) ** 2
    return xp.concatenate([rising, rising[:-1][::-1]])


def reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> Any:
    """The result in float64: one shifted copy of the signal per weight."""
    weights = window(xp, p, xp.float64)
    padded = xp.pad(arrays["signal"].astype(xp.float64), p.radius)
    total = xp.zeros(p.n)
    for shift in range(2 * p.radius + 1):
        total += weights[shift] * padded[shift : shift + p.n]
    return total


def convolve(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> None:
    """What a user of NumPy or CuPy would write."""
    whole = xp.convolve(arrays["signal"], window(xp, p, p.dtype), mode="full")
    arrays["smoothed"][...] = whole[p.radius : p.radius + p.n]


OPERATION = Operation(
    name="smooth",
    dims=("n", "radius"),
    dtypes=("float32", "float64"),
    tensors=tensors,
    work=work,
    reference=reference,
    scalars=lambda p: (Scalar("n", "int32", p.n),),
    constants=lambda p, target: {
        "SCALAR": {"float32": "float", "float64": "double"}[p.dtype],
        "RADIUS": p.radius,
    },
    terms=lambda p: 2 * p.radius + 1,
    baselines={"cuda": Baseline("CuPy convolve", convolve)},
)


def shared_bytes(p: Problem, c: Any) -> Any:
    """The samples of a block and their neighbours on both sides."""
    return c.SHARED * (c.BLOCK * c.PER_THREAD + 2 * p.radius) * DTYPE_BYTES[p.dtype]


def launch(p: Problem, c: Config) -> Launch:
    """As many blocks as cover the signal."""
    return Launch(
        grid=(ceil_div(p.n, c.BLOCK * c.PER_THREAD),), block=(c.BLOCK,), shared_bytes=shared_bytes(p, c)
    )


KERNEL = Kernel(
    operation="smooth",
    name="sliding",
    target="cuda",
    source=Source(Path("smooth.cu")),
    idea="neighbouring samples per block, brought into shared memory once or left to the caches",
    parameters=(
        powers_of_two("BLOCK", 32, 1024),
        choice("PER_THREAD", 1, 2, 4, 8, 16),
        choice("SHARED", 0, 1),
    ),
    constraints=(
        Constraint(
            "a block's samples and their neighbours fit into its shared memory",
            lambda p, d, c: shared_bytes(p, c) <= d.shared_bytes_per_block,
        ),
        Constraint(
            "a block's samples are fewer than twice the signal, or one per thread",
            lambda p, d, c: (c.PER_THREAD == 1) | (2 * p.n > c.BLOCK * c.PER_THREAD),
            for_speed=True,
        ),
    ),
    launch=launch,
    starts=({"BLOCK": 256, "PER_THREAD": 4, "SHARED": 1},),
)
