"""read: how fast a device reads memory, measured by summing a large array. A limit for the ladders' pages.

Not an operation of the catalogue: `tuner ladder` loads this file as it loads a user's own.
"""

from pathlib import Path

from tuner import DTYPE_BYTES, Baseline, Kernel, Launch, Operation, Source, Tensor, Work, choice, powers_of_two
from tuner.declare.rules import at_most_cores

OPERATION = Operation(
    name="read",
    dims=("parts", "n"),
    dtypes=("float32", "float64"),
    tensors=lambda p: (Tensor("x", (p.parts, p.n), p.dtype), Tensor("sums", (p.parts,), p.dtype, output=True)),
    work=lambda p: Work(flops=float(p.parts * p.n), bytes=float(DTYPE_BYTES[p.dtype] * p.parts * (p.n + 1))),
    reference=lambda xp, p, arrays: arrays["x"].sum(axis=1, dtype=xp.float64),
    terms=lambda p: p.n,
    constants=lambda p, target: (
        {"SCALAR": "float" if p.dtype == "float32" else "double"} if target == "cuda" else {}
    ),
    c_reference={"sums": "double s = 0; for (long long j = 0; j < n; ++j) s += x[index * n + j]; return s;"},
    baselines={"cpu": Baseline("NumPy", lambda xp, p, arrays: xp.sum(arrays["x"], axis=1, out=arrays["sums"]))},
)

KERNELS = (
    Kernel(
        operation="read",
        name="read",
        target="cuda",
        source=Source(Path("read.cu")),
        idea="a block sums a part in 128-bit loads, several in flight",
        parameters=(powers_of_two("BLOCK", 128, 1024), choice("UNROLL", 1, 2, 4, 8)),
        launch=lambda p, c: Launch(grid=(p.parts,), block=(c.BLOCK,)),
        tiles=lambda p, c: {"parts": 1},
        starts=(
            {"BLOCK": 512, "UNROLL": 4},
            {"BLOCK": 1024, "UNROLL": 2},
            {"BLOCK": 256, "UNROLL": 8},
            {"BLOCK": 1024, "UNROLL": 4},
        ),
    ),
    Kernel(
        operation="read",
        name="read",
        target="cpu",
        source=Source(
            Path("read.numba.py"), includes=(Path("../vectors.numba.py"), Path("../threads.numba.py"))
        ),
        idea="threads sum parts with vector instructions",
        parameters=(powers_of_two("THREADS", 1, 256),),
        constraints=(at_most_cores(),),
        threads="THREADS",
        starts=({"THREADS": 1},),
    ),
)
