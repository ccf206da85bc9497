"""transpose by CuPy's own copy of A.T: a second library for the ladder of transpose.

Not an operation of the catalogue: `tuner ladder` loads this file as it loads a user's own.
"""

from pathlib import Path

from tuner import Baseline, Kernel, Launch, Operation, Source, Tensor, Work, ceil_div, choice

#: C's name of each dtype.
SCALARS = {"float32": "float", "float64": "double", "int32": "int"}

OPERATION = Operation(
    name="cupy_transpose",
    dims=("m", "n"),
    dtypes=("float32", "float64", "int32"),
    tensors=lambda p: (Tensor("a", (p.m, p.n), p.dtype), Tensor("b", (p.n, p.m), p.dtype, output=True)),
    work=lambda p: Work(flops=0.0, bytes=float(sum(tensor.bytes for tensor in p.tensors))),
    reference=lambda xp, p, arrays: arrays["a"].astype(xp.float64).T,
    constants=lambda p, target: {"SCALAR": SCALARS[p.dtype]} if target == "cuda" else {},
    c_reference={"b": "return double(a[index % m * n + index / m]);"},
    baselines={"cuda": Baseline("CuPy", lambda xp, p, arrays: xp.copyto(arrays["b"], arrays["a"].T))},
)

KERNEL = Kernel(
    operation="cupy_transpose",
    name="padded_tile",
    target="cuda",
    source=Source(Path("../transpose/cuda/padded_tile.cu"), entry="transpose"),
    idea="transpose's own kernel, to compare with",
    parameters=(choice("TILE", 16, 32),),
    launch=lambda p, c: Launch(grid=(ceil_div(p.n, c.TILE) * ceil_div(p.m, c.TILE),), block=(c.TILE, c.TILE)),
    tiles=lambda p, c: {"m": c.TILE, "n": c.TILE},
    starts=({"TILE": 32},),
)
