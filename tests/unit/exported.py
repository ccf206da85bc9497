"""Champions to export, modules that were exported, and an exported main on the host."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tuner.catalogue import Catalogue, builtin, from_file
from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.measurement import Error, Measurement, Outcome
from tuner.problem import Problem
from tuner.record import Champion, ProblemKey, Record, Role

GPU = DeviceInfo(
    "NVIDIA H200", "cuda", architecture="sm_90a", driver="580.1", warp_size=32, max_threads_per_block=1024,
    max_threads_per_sm=2048, shared_bytes_per_block=232448, shared_bytes_per_sm=233472,
    registers_per_block=65536, registers_per_thread=255, compute_capability=90, sm_count=132,
)  # fmt: skip
CPU = DeviceInfo("AMD EPYC (AVX-512, 2 cores)", "cpu", architecture="znver5", cores=2, l2_bytes=1 << 25)
CATALOGUE = builtin()

#: A user's own operation: a dim that no input tells, a constant in the source, no C reference.
OWN = """
from pathlib import Path
from tuner.kernel import Kernel, Launch, ceil_div
from tuner.problem import Operation, Scalar, Tensor, Work
from tuner.space import Constraint, choice

OPERATION = Operation(
    name="spread", verb="spread", dims=("n", "copies", "width"),
    tensors=lambda p: (
        Tensor("kernel", (p.n,), p.dtype), Tensor("spread", (p.copies, p.n), p.dtype, output=True),
    ),
    work=lambda p: Work(flops=float(p.n) * p.copies, bytes=4.0 * p.n * (1 + p.copies)),
    reference=lambda xp, p, arrays: xp.outer(xp.arange(1.0, p.copies + 1), arrays["kernel"].astype(float)),
    scalars=lambda p: (Scalar("n", "int32", p.n), Scalar("copies", "int64", p.copies)),
    constants=lambda p, target: {"WIDTH": p.width},
)
KERNEL = Kernel(
    operation="spread", name="rows", target="TARGET", source=Path("SOURCE"), idea="blocks for each copy",
    parameters=(choice("BLOCK", 32, 64),),
    constraints=(
        Constraint("copies are in pairs", lambda p, d, c: p.copies % 2 == 0),
        Constraint("a block is full", lambda p, d, c: p.n >= c.BLOCK, for_speed=True),
    ),
    LAUNCH
    defaults={"BLOCK": 64},
)
"""
OWN_CUDA = """
extern "C" __global__ void spread(float* kernel, float* spread, int n, long long copies) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n && blockIdx.y < copies) spread[blockIdx.y * n + i] = kernel[i] * (blockIdx.y + 1) + 0 * WIDTH;
}
"""
OWN_NUMBA = """
from numba import njit

@njit
def spread(kernel, out, n, copies):
    for row in range(copies):
        for i in range(n):
            out[row, i] = kernel[i] * (row + 1)
"""


def champion(kernel: Kernel, problem: Problem, config: dict[str, Any], **more: Any) -> Champion:
    device = GPU if kernel.target == "cuda" else CPU
    key = ProblemKey(problem.operation.name, problem.shape, problem.dtype, problem.layout)
    measurement = Measurement(Outcome.MEASURED, samples_s=(1e-3, 2e-3, 1e-3), error=Error(1e-6, 2e-7, 0.1))
    work = {"flops": problem.work.flops, "bytes": problem.work.bytes}
    given = {"source_hash": kernel.source_hash, "versions": {"tuner": "0.1.0", "compiler": "NVRTC 13.0"}} | more
    best = Record(
        key, device, "cold", Role.FINAL, kernel.name, config, measurement=measurement, work=work, **given
    )
    library = Record(
        key, device, "cold", Role.BASELINE, "cuBLAS", {}, "", measurement, work,
        versions={"library": "cuBLAS 130100"},
    )  # fmt: skip
    return Champion(best, library, 0.95, "first", {"total": 3, "measured": 2, "failed": 1})


def gemm(name: str, target: str, layout: str = "nn", dims: tuple[int, int, int] = (300, 200, 100)) -> tuple:
    problem = CATALOGUE.operation("gemm").problem(dict(zip("mnk", dims, strict=True)), layout=layout)
    kernel = CATALOGUE.of("gemm", target, (name,))[0]
    return champion(kernel, problem, dict(kernel.default_config())), kernel, problem


def own(folder: Path, target: str, dims: tuple[int, int, int] = (100, 4, 3)) -> tuple:
    launch = "launch=lambda p, c: Launch((ceil_div(p.n, c.BLOCK), p.copies), (c.BLOCK,)),"
    source, text = ("own.cu", OWN_CUDA) if target == "cuda" else ("own.numba.py", OWN_NUMBA)
    (folder / source).write_text(text)
    declared = OWN.replace("TARGET", target).replace("SOURCE", source)
    (folder / "own.py").write_text(declared.replace("LAUNCH", launch if target == "cuda" else ""))
    catalogue: Catalogue = from_file(folder / "own.py")
    problem = catalogue.operation("spread").problem(dict(zip(("n", "copies", "width"), dims, strict=True)))
    return champion(catalogue.kernels[0], problem, {"BLOCK": 64}), catalogue.kernels[0], problem


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    return rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)


#: CUDA as far as an exported source without barriers needs it, on the host.
ON_HOST = r"""
#include <cstdlib>
#include <cstring>
struct dim3 { unsigned x, y, z; dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
static dim3 blockIdx, threadIdx, gridDim, blockDim;
#define __global__
#define __device__
#define __forceinline__ inline
#define __constant__ static
#define __launch_bounds__(...)
#define __restrict__
#define STUB(NAME, ...) static cudaError_t NAME(__VA_ARGS__)
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum Way { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
typedef int cudaStream_t, cudaEvent_t;
static const char* cudaGetErrorString(cudaError_t status) { return status ? "invalid value" : "none"; }
template <typename T> STUB(cudaMalloc, T** at, size_t size) { return *at = (T*)malloc(size), cudaSuccess; }
STUB(cudaFree, void* at) { return free(at), cudaSuccess; }
STUB(cudaMemset, void* at, int byte, size_t size) { return memset(at, byte, size), cudaSuccess; }
STUB(cudaMemcpy, void* to, const void* from, size_t size, Way) { return memcpy(to, from, size), cudaSuccess; }
template <typename T> STUB(cudaMallocAsync, T** at, size_t size, int) { return cudaMalloc(at, size); }
STUB(cudaFreeAsync, void* at, int) { return cudaFree(at); }
STUB(cudaMemsetAsync, void* at, int byte, size_t size, int) { return cudaMemset(at, byte, size); }
template <typename T>
STUB(cudaMemcpyToSymbolAsync, T& symbol, const void* from, size_t size, size_t offset, Way, int) {
    return memset(symbol, 0xff, sizeof symbol), memcpy((char*)symbol + offset, from, size), cudaSuccess;
}
template <typename T> static T min(T a, T b) { return b < a ? b : a; }
STUB(cudaDeviceSynchronize) { return cudaSuccess; }
STUB(cudaGetLastError) { return cudaSuccess; }
STUB(cudaEventCreate, cudaEvent_t*) { return cudaSuccess; }
STUB(cudaEventRecord, cudaEvent_t) { return cudaSuccess; }
STUB(cudaEventSynchronize, cudaEvent_t) { return cudaSuccess; }
STUB(cudaEventElapsedTime, float* to, cudaEvent_t, cudaEvent_t) { return *to = 20.0f, cudaSuccess; }
template <typename F> static void every_thread(dim3 grid, dim3 block, F body) {
    gridDim = grid, blockDim = block;
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
    for (threadIdx.y = 0; threadIdx.y < block.y; ++threadIdx.y)
    for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) body();
}
"""


def run_on_host(path: Path, *dims: int, change: tuple[str, str] = ("", "")) -> tuple[int, str]:
    """Runs an exported main with its launches as loops; `change` replaces a text of the kernel."""
    assert change[0] in path.read_text()
    text = path.read_text().replace(*change) if change[0] else path.read_text()
    text, launches = re.subn(
        r"(::\w+)<<<grid, block, shared_bytes, stream>>>\((.*)\);",
        r"(void)shared_bytes, (void)stream, every_thread(grid, block, [&] { \1(\2); });",
        text,
    )
    assert launches == 1 + ("copy_rows<<<" in path.read_text())
    main = path.with_name("main.cpp")
    main.write_text(ON_HOST + text)
    program = path.with_name("check")
    command = ["g++", "-std=c++17", "-O2", "-w", "-DTILE_TUNER_MAIN", str(main), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program, *(str(size) for size in dims)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


GXX = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def nvcc_warnings(path: Path) -> list[str]:
    """Compiles an exported CUDA source with its main; what the host's compiler warns of."""
    options = ["-std=c++17", "-arch=sm_90a", "-DTILE_TUNER_MAIN", "-Xcompiler", "-Wall,-Wextra"]
    command = ["nvcc", *options, path.name, "-o", "check"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "warning" in line and "#" not in line]
