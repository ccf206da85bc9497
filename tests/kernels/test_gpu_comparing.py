"""The GPU's kernels that compare arrays, run on the CPU beside NumPy's comparisons."""

from pathlib import Path

import numpy as np
import pytest
from probing import run_on_cpu

from tuner.declare.launch import Launch
from tuner.devices import comparing
from tuner.devices.cuda.comparing import THREADS, source
from tuner.workers.inputs import bits, infinity_of

BLOCKS = 3
TOLERANCE, SCALE = 1e-3, 0.5
DIFFERENCES = (
    "const float* output, const double* values, double* found",
    f"differences(output, values, n, {TOLERANCE}, {SCALE}, found);",
)
UNEQUAL = (
    "const unsigned char* one, const unsigned char* other, int* flag",
    "if (threadIdx.x == 0) *flag = 0; __syncthreads(); unequal(one, other, n, flag);",
)
SUM = (
    "const unsigned char* memory, unsigned long long* total",
    "if (threadIdx.x == 0) *total = 0; __syncthreads(); sum_of_words(memory, n, total);",
)


def probed(
    probe: tuple[str, str], made: tuple[str, tuple[int, ...], str], folder: Path, blocks: int = 1, /,
    **arrays: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """What a kernel of these arguments and this code makes of arrays of one length."""
    arguments, code = probe
    text = f'{source()}\nextern "C" __global__ void probe({arguments}, int n)\n{{ {code} }}\n'
    (n,) = {array.size for array in arrays.values()}
    launch = Launch((blocks,), (THREADS,))
    return run_on_cpu(text, "probe", arrays, [made], folder, launch, "random", n=n)[made[0]]


@pytest.mark.parametrize("n", [1, 255, 3001])
@pytest.mark.parametrize("wrong", ["nothing", "last", "nan"])
def test_differences_are_those_that_numpy_finds(n: int, wrong: str, folder: Path) -> None:
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n)
    output = (values + 1e-4 * rng.standard_normal(n)).astype(np.float32)
    if wrong != "nothing":
        output[-1] = np.nan if wrong == "nan" else 77
    parts = probed(DIFFERENCES, ("found", (BLOCKS, 4), "float64"), folder, BLOCKS, output=output, values=values)
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
        flag = probed(UNEQUAL, ("flag", (1,), "int32"), folder, one=one, other=other)
        assert bool(flag[0]) == (at is not None), at


@pytest.mark.parametrize("n", [1, 15, 16, 5003])
def test_a_sum_of_words_changes_with_any_bit(n: int, folder: Path) -> None:
    memory = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)

    def total(own: np.ndarray) -> int:
        return int(probed(SUM, ("total", (1,), "int64"), folder, memory=own)[0])

    whole = n // 16 * 16
    words, rest = memory[:whole].view(np.uint32), memory[whole:]
    # Byte by byte where memory does not begin at a multiple of 16 bytes.
    assert total(memory) in (words.sum(dtype=int) + rest.sum(dtype=int), memory.sum(dtype=int))
    for at, bit in ((0, 0), (n // 2, 7), (n - 1, 3)):
        changed = memory.copy()
        changed[at] ^= 1 << bit
        assert total(changed) != total(memory), (at, bit)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_a_fingerprint_is_the_same_on_a_gpu_as_by_numpy(dtype: str, folder: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, 40_000 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    cells, infinity = bits(values), infinity_of(dtype)
    code = "if (threadIdx.x == 0) *total = 0; __syncthreads();"
    call = f"fingerprint(cells, n, {cells.itemsize}, {infinity}ull, total);"
    probe = ("const void* cells, unsigned long long* total", f"{code} {call}")
    told = probed(probe, ("total", (1,), "int64"), folder, cells=cells)
    assert int(told[0]) % 2**64 == comparing.fingerprint(np, cells, infinity)
