"""The runner that tests of CUDA kernels rely on: CUDA's built-ins work in it, planted faults are found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import Fault
from numpy.typing import NDArray
from probing import run_on_cpu

from tuner.declare.launch import Launch, Workspace

ORDERS = ("forward", "backward", "random")
HEAD = 'extern "C" __global__ void probe(const float* x, float* y, int n) { int i = threadIdx.x;'


def run(body: str, folder: Path, n: int = 64, order: str = "forward", **launch: object) -> NDArray[np.float32]:
    """Runs a kernel of that body on x = 0, 1, 2...; one block of n threads unless said otherwise."""
    geometry = replace(Launch(grid=(1,), block=(n,)), **launch)
    arrays = {"x": np.arange(n, dtype=np.float32)}
    outputs = [("y", (n,), "float32")]
    return run_on_cpu(HEAD + body + "}", "probe", arrays, outputs, folder, geometry, order, n=n)["y"]


#: A copy of x[i] to s[i] that bypasses registers, as kernels write it.
COPY = (
    "__shared__ float s[64]; unsigned to = (unsigned)__cvta_generic_to_shared(s + i);"
    'asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"'
    ' ::"r"(to), "l"(x + i), "n"(4), "r"(i == 7 ? 0 : 4) : "memory");'
    'asm volatile("cp.async.commit_group;" ::: "memory");'
)
WAIT = 'asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");'
SHARED = "__shared__ float s[64]; "
WORKING = {
    "static shared memory": (SHARED + "s[i] = x[i]; __syncthreads(); y[i] = s[63 - i];", lambda x: x[::-1]),
    "a shuffle to a lane": ("y[i] = __shfl_sync(0xffffffffu, x[i], 5);", lambda x: x // 32 * 32 + 5),
    "a shuffle down in halves": (
        "y[i] = __shfl_down_sync(0xffffffffu, x[i], 8, 16);", lambda x: np.where(x % 16 < 8, x + 8, x),
    ),
    "votes": (
        "y[i] = __popc(__ballot_sync(0xffffffffu, i % 4 == 0)) + 100 * __any_sync(0xffffffffu, i == 40)"
        " + 1000 * __all_sync(0xffffffffu, i < 32);",
        lambda x: np.where(x < 32, 1008, 108),
    ),
    "lanes that have left": (
        "if (i >= 32 && i < 48) { y[i] = 0; return; }"
        "y[i] = i < 32 ? x[i] : __shfl_xor_sync(0xffff0000u, x[i], 1); __syncthreads();",
        lambda x: np.where(x < 32, x, np.where(x < 48, 0, x + 1 - 2 * (x % 2))),
    ),
    "atomic sums": (
        "__shared__ float s; if (!i) s = 0; __syncthreads(); atomicAdd(&s, x[i]); __syncthreads(); y[i] = s;",
        lambda x: np.full_like(x, x.sum()),
    ),
    "vectors": (
        "if (i < 16) { float4 v = __ldg((const float4*)x + i);"
        "((float2*)y)[2 * i] = make_float2(v.w, v.z); ((float2*)y)[2 * i + 1] = make_float2(v.y, v.x); }",
        lambda x: x.reshape(-1, 4)[:, ::-1].ravel(),
    ),
    "asynchronous copies": (
        COPY + WAIT + "__syncthreads(); y[i] = s[63 - i];", lambda x: np.where(x == 7, 0, x)[::-1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKING)
@pytest.mark.parametrize("order", ORDERS)
def test_built_ins_do_what_cuda_says(name: str, order: str, folder: Path) -> None:
    body, expected = WORKING[name]
    np.testing.assert_array_equal(
        run(body, folder, order=order), expected(np.arange(64, dtype=np.float32)).astype(np.float32)
    )


def test_dynamic_shared_memory_and_indices_of_three_dimensions(folder: Path) -> None:
    body = """
        extern __shared__ __align__(16) float s[];
        int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        s[t] = x[b * 8 + t]; __syncthreads(); y[b * 8 + t] = s[7 - t];
    """
    got = run(body, folder, grid=(2, 2, 2), block=(2, 2, 2), shared_bytes=32)
    np.testing.assert_array_equal(got.reshape(8, 8), np.arange(64).reshape(8, 8)[:, ::-1])


FAULTY = {
    "an index past the end": ("BOUNDS", "y[i] = x[i + 1];"),
    "a store to an input": ("BOUNDS", "((float*)x)[i] = 1; y[i] = 0;"),
    "a misaligned wide load": ("ALIGNMENT", "float4 v = ((const float4*)(x + 2))[i / 8]; y[i] = v.x;"),
    "an index outside a shared array": (
        "INDEX", "__shared__ float s[2][32]; s[0][i] = x[i]; __syncthreads(); y[i] = s[0][i];",
    ),
    "an index outside a local array": (
        "INDEX", "float v[4] = {}; for (int j = 0; j <= i % 8; ++j) v[j] += x[i]; y[i] = v[i % 4];",
    ),
    "a missing barrier": ("UNSET", SHARED + "s[i] = x[i]; y[i] = s[63 - i];"),
    "a missing second barrier": (
        "RACE", SHARED + "s[i] = x[i]; __syncthreads(); y[i] = s[63 - i]; s[i] = 2 * y[i];",
    ),
    "blocks that store to the same place": ("RACE", "y[i % 32] = blockIdx.x; if (i > 31) y[i] = 0;"),
    "a warp taken for synchronous": (
        "RACE", SHARED + "s[i] = 0; __syncthreads(); s[i] = x[i]; y[i] = s[i ^ 1];",
    ),
    "barriers of two branches": (
        "BARRIER", "if (i < 32)\n __syncthreads();\n else\n __syncthreads();\n y[i] = x[i];",
    ),
    "an asynchronous copy taken for a barrier": ("UNSET", COPY + WAIT + "y[i] = s[63 - i];"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.parametrize("order", ORDERS)
def test_planted_faults_are_found(name: str, order: str, folder: Path) -> None:
    kind, body = FAULTY[name]
    # Whichever thread comes first decides whether a missing barrier shows as a race or as an unset value.
    kinds = ("UNSET", "RACE") if kind == "UNSET" else (kind,)
    with pytest.raises(Fault, match="^(" + "|".join(kinds) + "): "):
        run(body, folder, order=order, **({"grid": (2,)} if "blocks" in name else {}))


# ---- memory of a kernel's own: blocks that hand sums to the last of them

BLOCKS, THREADS = 4, 64
LAST_BLOCK = """
extern "C" __global__ void sums(const float* x, float* y, int n, unsigned char* workspace)
{
    unsigned* arrived = (unsigned*)workspace;
    float* parts = (float*)(workspace + 256);
    __shared__ bool last;
    parts[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    float sum = 0;
    for (unsigned block = 0; block < gridDim.x; ++block) sum += parts[block * 64 + (threadIdx.x + 1) % 64];
    y[threadIdx.x] = sum;
}
"""
SHARING = Launch((BLOCKS,), (THREADS,), workspace=Workspace(256 + 4 * BLOCKS * THREADS, zeroed_bytes=4))


def summed(source: str, folder: Path, order: str) -> NDArray[np.float32]:
    x = np.arange(BLOCKS * THREADS, dtype=np.float32)
    outputs = [("y", (THREADS,), "float32")]
    return run_on_cpu(source, "sums", {"x": x}, outputs, folder, SHARING, order, n=x.size)["y"]


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_block_reads_what_the_others_left(order: str, folder: Path) -> None:
    expected = np.roll(np.arange(BLOCKS * THREADS, dtype=np.float32).reshape(BLOCKS, THREADS).sum(0), -1)
    np.testing.assert_array_equal(summed(LAST_BLOCK, folder, order), expected)


SHARING_FAULTS = {
    "no fence": ("RACE", "__threadfence();", ""),
    "no barrier before the atomic": ("RACE", "__threadfence();\n    __syncthreads();", "__threadfence();"),
    "no atomic": ("RACE", "atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1", "blockIdx.x == 3"),
    "a counter not set back": ("WORKSPACE", "atomicInc(arrived, gridDim.x - 1)", "atomicAdd(arrived, 1u)"),
    "a workspace that is too small": ("BOUNDS", "workspace + 256", "workspace + 512"),
}


@pytest.mark.parametrize("name", SHARING_FAULTS)
def test_faults_of_blocks_that_share_memory_are_found(name: str, folder: Path) -> None:
    kind, right, wrong = SHARING_FAULTS[name]
    assert LAST_BLOCK.count(right) == 1
    with pytest.raises(Fault, match=kind):
        summed(LAST_BLOCK.replace(right, wrong), folder, "forward")
