"""The GPU's kernels that compare arrays, run on the CPU beside NumPy's comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import compile_for_cpu

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.declare.problem import Operation, Tensor, Work
from tuner.devices import comparing
from tuner.devices.cuda.comparing import SOURCE, THREADS

BLOCKS = 3
TOLERANCE, SCALE = 1e-3, 0.5
DIFFERENCES = Operation(
    name="differences",
    dims=("n",),
    tensors=lambda p: (
        Tensor("output", (p.n,), "float32"), Tensor("values", (p.n,), "float64"),
        Tensor("found", (BLOCKS, 4), "float64", output=True),
    ),
    work=lambda p: Work(0.0, 0.0),
    reference=lambda xp, p, arrays: arrays["values"],
)  # fmt: skip
UNEQUAL = Operation(
    name="unequal",
    dims=("n",),
    tensors=lambda p: (
        Tensor("one", (p.n,), "uint8"), Tensor("other", (p.n,), "uint8"),
        Tensor("flag", (1,), "int32", output=True),
    ),
    work=lambda p: Work(0.0, 0.0),
    reference=lambda xp, p, arrays: arrays["one"],
)  # fmt: skip
DIFFERENCES_PROBE = f"""
extern "C" __global__ void probe(const float* output, const double* values, double* found, int n)
{{
    __shared__ double of_warps[4 * 32];
    differences(output, values, n, {TOLERANCE}, {SCALE}, of_warps, found);
}}
"""
UNEQUAL_PROBE = """
extern "C" __global__ void probe(const unsigned char* one, const unsigned char* other, int* flag, int n)
{
    if (threadIdx.x == 0) *flag = 0;
    __syncthreads();
    unequal_bytes(one, other, n, flag);
}
"""
SUM = Operation(
    name="sum",
    dims=("n",),
    tensors=lambda p: (Tensor("memory", (p.n,), "uint8"), Tensor("total", (1,), "int64", output=True)),
    work=lambda p: Work(0.0, 0.0),
    reference=lambda xp, p, arrays: arrays["memory"],
)
SUM_PROBE = """
extern "C" __global__ void probe(const unsigned char* memory, unsigned long long* total, int n)
{
    if (threadIdx.x == 0) *total = 0;
    __syncthreads();
    add_words(memory, n, total);
}
"""
LAUNCH = Launch(grid=(BLOCKS,), block=(THREADS,))


@pytest.mark.parametrize("n", [1, 31, 255, 1000, 3001])
@pytest.mark.parametrize("wrong", ["nothing", "last", "nan"])
def test_differences_are_those_that_numpy_finds(n: int, wrong: str, folder: Path) -> None:
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n)
    output = (values + 1e-4 * rng.standard_normal(n)).astype(np.float32)
    if wrong != "nothing":
        output[-1] = np.nan if wrong == "nan" else 77
    program = compile_for_cpu(Rendered(SOURCE + DIFFERENCES_PROBE, "probe", "cuda"), folder)
    arrays = {"output": output, "values": values}
    found = program.run(DIFFERENCES.problem({"n": n}), LAUNCH, arrays, "random")["found"]
    told = (*found[:, :2].max(axis=0), *found[:, 2:].sum(axis=0))
    expected = comparing.differences(np, output, values, TOLERANCE, SCALE)
    wanted = (expected.largest, expected.ratio, expected.total, expected.squares)
    np.testing.assert_allclose(told, wanted, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 15, 16, 1000, 5003])
def test_any_byte_counts(n: int, folder: Path) -> None:
    program = compile_for_cpu(Rendered(SOURCE + UNEQUAL_PROBE, "probe", "cuda"), folder)
    launch = Launch(grid=(1,), block=(THREADS,))
    one = np.random.default_rng(n).integers(0, 200, n).astype(np.uint8)
    for at in {None, 0, n // 2, n - 1}:
        other = one.copy()
        if at is not None:
            other[at] ^= 1
        found = program.run(UNEQUAL.problem({"n": n}), launch, {"one": one, "other": other}, "random")["flag"]
        assert bool(found[0]) == (at is not None), at


@pytest.mark.parametrize("n", [1, 15, 16, 1000, 5003])
def test_a_sum_of_words_changes_with_any_bit(n: int, folder: Path) -> None:
    program = compile_for_cpu(Rendered(SOURCE + SUM_PROBE, "probe", "cuda"), folder)
    memory = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)

    def total(bytes_: np.ndarray) -> int:
        found = program.run(SUM.problem({"n": n}), Launch((1,), (THREADS,)), {"memory": bytes_}, "random")
        return int(found["total"][0])

    whole = n // 16 * 16
    words, rest = memory[:whole].view(np.uint32), memory[whole:]
    # Byte by byte where memory does not begin at a multiple of 16 bytes.
    assert total(memory) in (words.sum(dtype=int) + rest.sum(dtype=int), memory.sum(dtype=int))
    for at, bit in ((0, 0), (n // 2, 7), (n - 1, 3)):
        changed = memory.copy()
        changed[at] ^= 1 << bit
        assert total(changed) != total(memory), (at, bit)
