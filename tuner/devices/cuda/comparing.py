"""Compares arrays on a GPU: one kernel each, which reads every element once and needs no memory beside them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import cupy
import numpy

THREADS, MOST_BLOCKS = 256, 1024
#: Elements of a thread before another block is worth its start.
PER_THREAD = 4
#: Entry of each dtype that is compared as it is; others become float64 first.
ENTRIES = {"float32": "differences_float", "float64": "differences_double"}
#: Largest difference, largest share of what is allowed, sum and sum of squares of each block. Another entry
#: sets a flag where two stretches of memory differ in a byte, and one adds up the words of a stretch: CuPy's
#: own sums take 4 s to compile for each dtype where they are not on disk yet.
SOURCE = """
// NaN is larger than any number.
__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }

template <typename T>
__device__ void differences(const T* output, const double* values, long long count, double tolerance,
                            double scale, double* of_warps, double* found)
{
    double largest = 0.0, ratio = 0.0, total = 0.0, squares = 0.0;
    const long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        const double value = values[i], difference = fabs((double)output[i] - value);
        const double allowed = fmax(tolerance * (scale + fabs(value)), 1e-300);
        largest = larger(largest, difference);
        ratio = larger(ratio, difference / allowed);
        total += difference;
        squares += difference * difference;
    }
    for (int lanes = 16; lanes; lanes /= 2) {
        largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        ratio = larger(ratio, __shfl_xor_sync(0xffffffffu, ratio, lanes));
        total += __shfl_xor_sync(0xffffffffu, total, lanes);
        squares += __shfl_xor_sync(0xffffffffu, squares, lanes);
    }
    if (threadIdx.x % 32 == 0) {
        of_warps[threadIdx.x / 32] = largest;
        of_warps[32 + threadIdx.x / 32] = ratio;
        of_warps[2 * 32 + threadIdx.x / 32] = total;
        of_warps[3 * 32 + threadIdx.x / 32] = squares;
    }
    __syncthreads();
    if (threadIdx.x < 4) {
        double all = 0.0;
        for (int warp = 0; warp < blockDim.x / 32; ++warp) {
            const double one = of_warps[32 * threadIdx.x + warp];
            all = threadIdx.x < 2 ? larger(all, one) : all + one;
        }
        found[4 * blockIdx.x + threadIdx.x] = all;
    }
}

extern "C" __global__ void differences_float(const float* output, const double* values, long long count,
                                             double tolerance, double scale, double* found)
{
    __shared__ double of_warps[4 * 32];
    differences(output, values, count, tolerance, scale, of_warps, found);
}

extern "C" __global__ void differences_double(const double* output, const double* values, long long count,
                                              double tolerance, double scale, double* found)
{
    __shared__ double of_warps[4 * 32];
    differences(output, values, count, tolerance, scale, of_warps, found);
}

__device__ void unequal_bytes(const unsigned char* one, const unsigned char* other, long long bytes, int* flag)
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

extern "C" __global__ void unequal(const unsigned char* one, const unsigned char* other, long long bytes,
                                   int* flag)
{
    unequal_bytes(one, other, bytes, flag);
}

__device__ void add_words(const unsigned char* memory, long long bytes, unsigned long long* total)
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

extern "C" __global__ void sum_of_words(const unsigned char* memory, long long bytes, unsigned long long* total)
{
    add_words(memory, bytes, total);
}
"""


def differences(output: Any, values: Any, tolerance: float, scale: float) -> tuple[float, float, float, float]:
    """See `tuner.devices.comparing.differences`; in the order of its result."""
    entry = ENTRIES.get(str(output.dtype))
    if entry is None:
        output, entry = output.astype(cupy.float64), ENTRIES["float64"]
    blocks = _blocks(values.size)
    found = cupy.empty((blocks, 4), dtype=cupy.float64)
    arguments = (output, values, numpy.int64(values.size), float(tolerance), float(scale), found)
    _entry(entry, cupy.cuda.Device().id)((blocks,), (THREADS,), arguments)
    told = found.get()
    (largest, ratio), (total, squares) = told[:, :2].max(axis=0).tolist(), told[:, 2:].sum(axis=0).tolist()
    return largest, ratio, total, squares


def unequal(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    """See `tuner.devices.comparing.unequal`; the device is waited for once."""
    kernel = _entry("unequal", cupy.cuda.Device().id)
    flags = cupy.zeros(len(pairs), dtype=cupy.int32)
    for number, (one, other) in enumerate(pairs):
        arguments = (one, other, numpy.int64(one.nbytes), flags[number:])
        kernel((_blocks(one.nbytes // 16),), (THREADS,), arguments)
    return [bool(each) for each in flags.get()]


def checksums(arrays: Sequence[Any]) -> list[int]:
    """See `tuner.devices.comparing.checksums`; the device is waited for once."""
    kernel = _entry("sum_of_words", cupy.cuda.Device().id)
    totals = cupy.zeros(len(arrays), dtype=cupy.uint64)
    for number, each in enumerate(arrays):
        arguments = (each, numpy.int64(each.nbytes), totals[number:])
        kernel((_blocks(each.nbytes // 16),), (THREADS,), arguments)
    return [int(each) for each in totals.get()]


def _blocks(count: int) -> int:
    return max(1, min(MOST_BLOCKS, -(-count // (THREADS * PER_THREAD))))


@functools.cache
def _entry(name: str, device: int) -> Any:
    """A kernel on a device; CuPy keeps its machine code on disk."""
    return cupy.RawModule(code=SOURCE, options=("-std=c++17",)).get_function(name)
