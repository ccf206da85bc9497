"""Compares arrays on a GPU: one kernel each, which reads every element once and needs no memory beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy

from tuner.devices.cuda.launching import helper

THREADS, MOST_BLOCKS = 256, 1024
#: Elements of a thread before another block is worth its start.
PER_THREAD = 4
#: Type of an output that is compared as it is, by dtype; others become float64 first.
REALS = {"float32": "float", "float64": "double"}
#: One kernel finds, for each block, the largest difference, the largest share of what is allowed, the sum and
#: the sum of squares. One sets a flag if two stretches of memory differ in a byte. One adds up the words of a
#: stretch: CuPy's own sums take 4 s to compile for each dtype where they are not on disk yet.
SOURCE = """
// NaN is larger than any number.
__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }
// The first two of four numbers are largest ones, the others are sums.
__device__ double joined(int part, double a, double b) { return part < 2 ? larger(a, b) : a + b; }

extern "C" __global__ void differences(const REAL* output, const double* values, long long count,
                                       double tolerance, double scale, double* found)
{
    __shared__ double of_warps[4 * 32];
    double parts[4] = {0.0, 0.0, 0.0, 0.0};
    const long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        const double value = values[i], difference = fabs((double)output[i] - value);
        const double allowed = fmax(tolerance * (scale + fabs(value)), 1e-300);
        parts[0] = larger(parts[0], difference);
        parts[1] = larger(parts[1], difference / allowed);
        parts[2] += difference;
        parts[3] += difference * difference;
    }
    for (int part = 0; part < 4; ++part) {
        for (int lanes = 16; lanes; lanes /= 2)
            parts[part] = joined(part, parts[part], __shfl_xor_sync(0xffffffffu, parts[part], lanes));
        if (threadIdx.x % 32 == 0) of_warps[32 * part + threadIdx.x / 32] = parts[part];
    }
    __syncthreads();
    if (threadIdx.x < 4) {
        double all = 0.0;
        for (int warp = 0; warp < blockDim.x / 32; ++warp)
            all = joined(threadIdx.x, all, of_warps[32 * threadIdx.x + warp]);
        found[4 * blockIdx.x + threadIdx.x] = all;
    }
}

extern "C" __global__ void unequal(const unsigned char* one, const unsigned char* other, long long bytes,
                                   int* flag)
{
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long step = gridDim.x * (long long)blockDim.x;
    const bool wide = ((unsigned long long)one | (unsigned long long)other) % 16 == 0;
    const long long words = wide ? bytes / 16 : 0;
    bool found = false;
    for (long long i = first; i < words; i += step) {
        const uint4 x = ((const uint4*)one)[i], y = ((const uint4*)other)[i];
        found = found || x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    }
    for (long long i = 16 * words + first; i < bytes; i += step) found = found || one[i] != other[i];
    if (found) *flag = 1;
}

extern "C" __global__ void sum_of_words(const unsigned char* memory, long long bytes, unsigned long long* total)
{
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long step = gridDim.x * (long long)blockDim.x;
    const long long words = (unsigned long long)memory % 16 == 0 ? bytes / 16 : 0;
    unsigned long long sum = 0;
    for (long long i = first; i < words; i += step) {
        const uint4 word = ((const uint4*)memory)[i];
        sum += (unsigned long long)word.x + word.y + word.z + word.w;
    }
    for (long long i = 16 * words + first; i < bytes; i += step) sum += memory[i];
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}
"""


def source(real: str = "float") -> str:
    """All kernels, the first for outputs of this type."""
    return f"#define REAL {real}\n{SOURCE}"


def differences(output: Any, values: Any, tolerance: float, scale: float) -> Any:
    """Rows of what `tuner.devices.comparing.differences` joins, on the host."""
    if str(output.dtype) not in REALS:
        output = output.astype(cupy.float64)
    blocks = _blocks(values.size)
    rows = cupy.empty((blocks, 4), dtype=cupy.float64)
    arguments = (output, values, numpy.int64(values.size), float(tolerance), float(scale), rows)
    helper(source(REALS[str(output.dtype)]), "differences")((blocks, 1, 1), (THREADS, 1, 1), arguments, 0)
    return rows.get()


def unequal(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    """See `tuner.devices.comparing.unequal`; the device is waited for once."""
    return [bool(flag) for flag in _of_each("unequal", pairs, cupy.int32)]


def checksums(arrays: Sequence[Any]) -> list[int]:
    """See `tuner.devices.comparing.checksums`; the device is waited for once."""
    return [int(total) for total in _of_each("sum_of_words", [(array,) for array in arrays], cupy.uint64)]


def _of_each(entry: str, stretches: Sequence[tuple[Any, ...]], dtype: Any) -> Any:
    """What a kernel makes of each group of stretches of the same size, on the host."""
    results = cupy.zeros(len(stretches), dtype=dtype)
    kernel = helper(source(), entry)
    for number, arrays in enumerate(stretches):
        size = arrays[0].nbytes
        arguments = (*arrays, numpy.int64(size), results[number:])
        kernel((_blocks(size // 16), 1, 1), (THREADS, 1, 1), arguments, 0)
    return results.get()


def _blocks(count: int) -> int:
    return max(1, min(MOST_BLOCKS, -(-count // (THREADS * PER_THREAD))))
