"""copy: how fast a device copies memory; both directions count. A limit for the ladders' pages.

Not an operation of the catalogue: `tuner ladder` loads this file as it loads a user's own.
"""

from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    Baseline,
    Config,
    Kernel,
    Launch,
    Operation,
    Problem,
    Source,
    Tensor,
    Work,
    ceil_div,
    choice,
    powers_of_two,
)
from tuner.declare.rules import at_most_cores


def _tile(p: Problem, c: Any) -> dict[str, Any]:
    return {"n": c.BLOCK * c.UNROLL * 16 // DTYPE_BYTES[p.dtype]}


def _launch(p: Problem, c: Config) -> Launch:
    packs = ceil_div(p.n * DTYPE_BYTES[p.dtype], 16)
    return Launch(grid=(ceil_div(packs, c.BLOCK * c.UNROLL),), block=(c.BLOCK,))


OPERATION = Operation(
    name="copy",
    dims=("n",),
    dtypes=("float32", "float64", "int32"),
    tensors=lambda p: (Tensor("x", (p.n,), p.dtype), Tensor("y", (p.n,), p.dtype, output=True)),
    work=lambda p: Work(flops=0.0, bytes=2.0 * DTYPE_BYTES[p.dtype] * p.n),
    reference=lambda xp, p, arrays: arrays["x"].astype(xp.float64),
    constants=lambda p, target: {"ELEMENT_BYTES": DTYPE_BYTES[p.dtype]} if target == "cuda" else {},
    c_reference={"y": "return double(x[index]);"},
    baselines={
        "cuda": Baseline("CuPy", lambda xp, p, arrays: xp.copyto(arrays["y"], arrays["x"])),
        "cpu": Baseline("NumPy", lambda xp, p, arrays: xp.copyto(arrays["y"], arrays["x"])),
    },
)

KERNELS = (
    Kernel(
        operation="copy",
        name="copy",
        target="cuda",
        source=Source(Path("copy.cu")),
        idea="128-bit loads and stores, several in flight",
        parameters=(powers_of_two("BLOCK", 128, 1024), choice("UNROLL", 1, 2, 4, 8)),
        launch=_launch,
        tiles=_tile,
        starts=(
            {"BLOCK": 256, "UNROLL": 4},
            {"BLOCK": 512, "UNROLL": 2},
            {"BLOCK": 1024, "UNROLL": 1},
            {"BLOCK": 256, "UNROLL": 8},
        ),
    ),
    Kernel(
        operation="copy",
        name="copy",
        target="cpu",
        source=Source(
            Path("copy.numba.py"), includes=(Path("../vectors.numba.py"), Path("../threads.numba.py"))
        ),
        idea="threads copy parts of the array, past the cache or through it",
        parameters=(choice("STREAM", False, True), powers_of_two("THREADS", 1, 256)),
        constraints=(at_most_cores(),),
        threads="THREADS",
        starts=(
            {"STREAM": True, "THREADS": 1},
            {"STREAM": False, "THREADS": 1},
        ),
    ),
)
