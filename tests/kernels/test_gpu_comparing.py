"""The GPU's kernels that compare arrays, run on the CPU beside NumPy's comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from probing import probe, run_on_cpu

from tuner.declare.launch import Launch
from tuner.devices import comparing
from tuner.devices.cuda.comparing import THREADS, source

BLOCKS = 3
TOLERANCE, SCALE = 1e-3, 0.5
LAUNCH, ONE_BLOCK = Launch((BLOCKS,), (THREADS,)), Launch((1,), (THREADS,))
DIFFERENCES = probe(
    "probe", lambda p: [("output", (p.n,), "float32"), ("values", (p.n,), "float64")],
    lambda p: [("found", (BLOCKS, 4), "float64")],
)  # fmt: skip
DIFFERENCES_PROBE = f"""{source()}
extern "C" __global__ void probe(const float* output, const double* values, double* found, int n)
{{
    differences(output, values, n, {TOLERANCE}, {SCALE}, found);
}}
"""
UNEQUAL = probe(
    "probe",
    lambda p: [("one", (p.n,), "uint8"), ("other", (p.n,), "uint8")],
    lambda p: [("flag", (1,), "int32")],
)
UNEQUAL_PROBE = f"""{source()}
extern "C" __global__ void probe(const unsigned char* one, const unsigned char* other, int* flag, int n)
{{
    if (threadIdx.x == 0) *flag = 0;
    __syncthreads();
    unequal(one, other, n, flag);
}}
"""
SUM = probe("probe", lambda p: [("memory", (p.n,), "uint8")], lambda p: [("total", (1,), "int64")])
SUM_PROBE = f"""{source()}
extern "C" __global__ void probe(const unsigned char* memory, unsigned long long* total, int n)
{{
    if (threadIdx.x == 0) *total = 0;
    __syncthreads();
    sum_of_words(memory, n, total);
}}
"""


@pytest.mark.parametrize("n", [1, 255, 3001])
@pytest.mark.parametrize("wrong", ["nothing", "last", "nan"])
def test_differences_are_those_that_numpy_finds(n: int, wrong: str, folder: Path) -> None:
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n)
    output = (values + 1e-4 * rng.standard_normal(n)).astype(np.float32)
    if wrong != "nothing":
        output[-1] = np.nan if wrong == "nan" else 77
    arrays = {"output": output, "values": values}
    parts = run_on_cpu(DIFFERENCES_PROBE, DIFFERENCES.problem({"n": n}), LAUNCH, arrays, folder, "random")[
        "found"
    ]
    expected = comparing.differences(np, output, values, TOLERANCE, SCALE)
    np.testing.assert_allclose(
        (*parts[:, :2].max(axis=0), *parts[:, 2:].sum(axis=0)),
        (expected.largest, expected.ratio, expected.total, expected.squares), rtol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 15, 16, 5003])
def test_any_byte_counts(n: int, folder: Path) -> None:
    one = np.random.default_rng(n).integers(0, 200, n).astype(np.uint8)
    for at in {None, 0, n // 2, n - 1}:
        other = one.copy()
        if at is not None:
            other[at] ^= 1
        arrays = {"one": one, "other": other}
        flag = run_on_cpu(UNEQUAL_PROBE, UNEQUAL.problem({"n": n}), ONE_BLOCK, arrays, folder, "random")["flag"]
        assert bool(flag[0]) == (at is not None), at


@pytest.mark.parametrize("n", [1, 15, 16, 5003])
def test_a_sum_of_words_changes_with_any_bit(n: int, folder: Path) -> None:
    memory = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)

    def total(bytes_: np.ndarray) -> int:
        outputs = run_on_cpu(SUM_PROBE, SUM.problem({"n": n}), ONE_BLOCK, {"memory": bytes_}, folder, "random")
        return int(outputs["total"][0])

    whole = n // 16 * 16
    words, rest = memory[:whole].view(np.uint32), memory[whole:]
    # Byte by byte where memory does not begin at a multiple of 16 bytes.
    assert total(memory) in (words.sum(dtype=int) + rest.sum(dtype=int), memory.sum(dtype=int))
    for at, bit in ((0, 0), (n // 2, 7), (n - 1, 3)):
        changed = memory.copy()
        changed[at] ^= 1 << bit
        assert total(changed) != total(memory), (at, bit)
