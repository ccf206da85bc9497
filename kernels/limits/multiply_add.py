"""multiply_add: how fast a device multiplies and adds without memory accesses. A limit for the ladders.

y <- y / 2 + 1 is applied to every element until it is 2, whatever its first value.
Not an operation of the catalogue: `tuner ladder` loads this file as it loads a user's own.
"""

from pathlib import Path

from tuner import DTYPE_BYTES, Kernel, Launch, Operation, Source, Tensor, Work, ceil_div, choice, powers_of_two
from tuner.declare.rules import at_most_cores

OPERATION = Operation(
    name="multiply_add",
    dims=("n", "steps"),
    dtypes=("float32", "float64"),
    tensors=lambda p: (Tensor("x", (p.n,), p.dtype), Tensor("y", (p.n,), p.dtype, output=True)),
    work=lambda p: Work(flops=2.0 * p.n * p.steps, bytes=2.0 * DTYPE_BYTES[p.dtype] * p.n),
    reference=lambda xp, p, arrays: arrays["x"].astype(xp.float64) * 0.5**p.steps + (2 - 0.5 ** (p.steps - 1)),
    terms=lambda p: p.steps,
    constants=lambda p, target: (
        {"SCALAR": "float" if p.dtype == "float32" else "double"} if target == "cuda" else {}
    ),
    c_reference={"y": "return double(x[index]) * exp2(-double(steps)) + (2 - exp2(1 - double(steps)));"},
)

KERNELS = (
    Kernel(
        operation="multiply_add",
        name="multiply_add",
        target="cuda",
        source=Source(Path("multiply_add.cu")),
        idea="CHAINS independent chains of multiply-adds in the registers of every thread",
        parameters=(powers_of_two("BLOCK", 64, 512), choice("CHAINS", 2, 4, 8, 16)),
        launch=lambda p, c: Launch(grid=(ceil_div(p.n, c.BLOCK * c.CHAINS),), block=(c.BLOCK,)),
        tiles=lambda p, c: {"n": c.BLOCK * c.CHAINS},
        starts=({"BLOCK": 256, "CHAINS": 8}, {"BLOCK": 512, "CHAINS": 4}, {"BLOCK": 128, "CHAINS": 16}),
    ),
    Kernel(
        operation="multiply_add",
        name="multiply_add",
        target="cpu",
        source=Source(
            Path("multiply_add.numba.py"), includes=(Path("../vectors.numba.py"), Path("../threads.numba.py"))
        ),
        idea="LANES independent chains of multiply-adds in vector registers, in every thread",
        parameters=(choice("LANES", 64, 128, 256), powers_of_two("THREADS", 1, 256)),
        constraints=(at_most_cores(),),
        threads="THREADS",
        starts=({"LANES": 128, "THREADS": 1},),
    ),
)
