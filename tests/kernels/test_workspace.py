"""Memory of a kernel's own in the runner on the CPU: blocks that hand sums to the last of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import Fault
from probing import probe, run_on_cpu

from tuner.declare.launch import Launch, Workspace

BLOCKS, THREADS = 4, 64
SUMS = probe("sums", lambda p: [("x", (p.n,), "float32")], lambda p: [("y", (THREADS,), "float32")])
SOURCE = """
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
LAUNCH = Launch((BLOCKS,), (THREADS,), workspace=Workspace(256 + 4 * BLOCKS * THREADS, zeroed_bytes=4))


def run(source: str, folder: Path, order: str) -> np.ndarray:
    x = np.arange(BLOCKS * THREADS, dtype=np.float32)
    return run_on_cpu(source, SUMS.problem({"n": x.size}), LAUNCH, {"x": x}, folder, order)["y"]


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_the_last_block_reads_what_the_others_left(order: str, folder: Path) -> None:
    expected = np.roll(np.arange(BLOCKS * THREADS, dtype=np.float32).reshape(BLOCKS, THREADS).sum(0), -1)
    np.testing.assert_array_equal(run(SOURCE, folder, order), expected)


FAULTS = {
    "no fence": ("RACE", "__threadfence();", ""),
    "no barrier before the atomic": ("RACE", "__threadfence();\n    __syncthreads();", "__threadfence();"),
    "no atomic": ("RACE", "atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1", "blockIdx.x == 3"),
    "a counter not set back": ("WORKSPACE", "atomicInc(arrived, gridDim.x - 1)", "atomicAdd(arrived, 1u)"),
    "a workspace that is too small": ("BOUNDS", "workspace + 256", "workspace + 512"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str, folder: Path) -> None:
    kind, right, wrong = FAULTS[name]
    assert SOURCE.count(right) == 1
    with pytest.raises(Fault, match=kind):
        run(SOURCE.replace(right, wrong), folder, "forward")
