"""Exports: what is written, and that it works without this package."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.catalogue import Catalogue, builtin, from_file
from tuner.errors import InputError, UnknownName
from tuner.export import FORMATS, export
from tuner.export.fingerprint import drawn
from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.lookup import Answer
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
LAYOUTS = ("nn", "nt", "tn", "tt")

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


# ---- any format


@pytest.mark.parametrize("format", list(FORMATS))
def test_each_format_says_where_it_comes_from(format: str, tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("naive", "cuda")
    paths = export(Answer(crowned), kernel, problem, format, tmp_path / "new" / "folder")
    told = "".join(path.read_text() for path in paths if path.suffix != ".cubin")
    told = told.replace('\\"', '"')
    for part in ("NVIDIA H200", "580.1", crowned.record.id, crowned.record.measured_at, "0.1.0", "NVRTC 13.0"):
        assert part in told
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(
        p.name for p in paths
    )


def test_kernels_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    paths = [
        path
        for target in ("cuda", "cpu")
        for format in ("python", "json")
        for path in export(*gemm("naive", target), format, tmp_path)
    ]
    paths += export(*gemm("naive", "cuda"), "binary", tmp_path)
    assert len(set(paths)) == len(list(tmp_path.iterdir())) == 6
    assert all(path.stem.isidentifier() for path in paths if path.suffix == ".py")


def test_a_change_of_the_source_and_a_faster_library_are_told(tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("naive", "cuda")
    text = export(crowned, kernel, problem, "source", tmp_path)[0].read_text()
    assert "beside cuBLAS 130100: 0.012 TFLOPS, speed-up 0.950; the library was faster" in text
    assert "has changed" not in text
    changed = champion(kernel, problem, dict(crowned.record.config), source_hash="before")
    text = export(changed, kernel, problem, "source", tmp_path)[0].read_text()
    assert f"The source has changed since it was measured, to {kernel.source_hash}: tune again." in text


def test_the_record_describes_itself(tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("naive", "cuda", "nt")
    told = json.loads(export(crowned, kernel, problem, "json", tmp_path)[0].read_text())
    assert told["shape"] == {"m": 300, "n": 200, "k": 100}
    assert (told["layout"], told["config"]) == ("nt", dict(crowned.record.config))
    assert told["measurement"]["samples_s"] == [1e-3, 2e-3, 1e-3]
    assert told["baseline"]["versions"] == {"library": "cuBLAS 130100"}
    assert DeviceInfo.from_json(told["device"]) == GPU
    assert all(key.split(".")[0] in told for key in told["about"])


def test_the_binary_comes_with_how_to_launch_it(tmp_path: Path) -> None:
    cubin, described = export(*gemm("register_tiled", "cuda", "nt", (1024, 2048, 512)), "binary", tmp_path)
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    told = json.loads(described.read_text())
    assert (told["cubin"], told["entry"], told["architecture"]) == (cubin.name, "gemm", "sm_90a")
    dims = {"m": 1024, "n": 2048, "k": 512}
    names = {**dims, "ceil_div": lambda a, b: -(-a // b)}
    rules = told["rules"]
    assert [eval(rule, names) for rule in rules["grid"]] == told["launch"]["grid"]
    assert [eval(rule, names) for rule in rules["block"]] == told["launch"]["block"]
    assert eval(rules["shared_bytes"], names) == told["launch"]["shared_bytes"]
    assert all(eval(rule, names) for rule in rules["must_hold"])
    assert [each["name"] for each in told["arguments"]] == ["a", "b", "c", "m", "n", "k"]
    assert [each["shape"] for each in told["arguments"][:3]] == [["m", "k"], ["n", "k"], ["m", "n"]]
    assert [each["value"] for each in told["arguments"][3:]] == ["m", "n", "k"]


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown export format 'pyton'; did you mean python"):
        export(*gemm("naive", "cpu"), "pyton", tmp_path)


def test_a_cpu_kernel_has_no_binary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got the cpu kernel 'naive'; choose source, python or json"):
        export(*gemm("naive", "cpu"), "binary", tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"needs a folder that can be written, got .*file \(.*; choose another"
    ):
        export(*gemm("naive", "cpu"), "python", tmp_path / "file")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        export(*gemm("naive", "cpu"), "python", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_config_of_another_kernel_or_time_is_refused(tmp_path: Path) -> None:
    crowned, _, problem = gemm("naive", "cuda")
    other = gemm("register_tiled", "cuda")[1]
    with pytest.raises(InputError, match=r"kernel 'register_tiled' has parameters BM, .*; tune again"):
        export(crowned, other, problem, "source", tmp_path)
    crowned, kernel, problem = own(tmp_path, "cuda", (100, 3, 3))
    with pytest.raises(InputError, match="copies are in pairs: the champion's config breaks this rule"):
        export(crowned, kernel, problem, "source", tmp_path)


# ---- Python modules


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exported_cpu_module_multiplies_without_this_package(layout: str, tmp_path: Path) -> None:
    (path,) = export(*gemm("naive", "cpu", layout), "python", tmp_path)
    script = f"""
import sys, warnings
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np, {path.stem} as exported
for m, n, k in ((300, 200, 100), (1, 1, 1), (7, 5, 33)):
    a, b = np.arange(m * k, dtype="f4").reshape(m, k) % 7, np.arange(k * n, dtype="f4").reshape(k, n) % 5
    for left, right in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a[::-1], b[:, ::-1])):
        assert np.array_equal(exported.matmul(left, right), left @ right)
assert not any(name.split(".")[0] in ("tuner", "cupy", "optuna") for name in sys.modules)
print("right")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "right\n", done.stderr


@pytest.mark.parametrize(("name", "target"), [("naive", "cpu"), ("blocked", "cpu"), ("register_tiled", "cuda")])
def test_a_module_imports_only_what_it_may(name: str, target: str, tmp_path: Path) -> None:
    (path,) = export(*gemm(name, target), "python", tmp_path)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {each.name for each in node.names} if isinstance(node, ast.Import) else {node.module}
    tops = {each.split(".")[0] for each in found} - sys.stdlib_module_names
    assert tops <= ({"numpy", "cupy"} if target == "cuda" else {"numpy", "numba"})


def test_the_source_of_a_cpu_kernel_is_the_module(tmp_path: Path) -> None:
    given = gemm("naive", "cpu")
    assert export(*given, "source", tmp_path) == export(*given, "python", tmp_path)


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda a, b: (a.astype("f8"), b), TypeError, r"matmul: a must be float32, got float64; convert it"),
    (lambda a, b: (a.tolist(), b), TypeError, "matmul: a must be a NumPy array, got list"),
    (lambda a, b: (a, b[0]), ValueError, "matmul: b must have 2 dimensions, got 1"),
    (lambda a, b: (a, b[1:]), ValueError, r"b must be \(k, n\), here \(4, 5\), got shape \(3, 5\)"),
    (lambda a, b: (a[:0], b), ValueError, "no dim may be empty, got m=0, n=5, k=4"),
]


@pytest.mark.parametrize(("change", "kind", "told"), WRONG)
def test_a_module_refuses_as_numpy_does(change: Any, kind: Any, told: str, tmp_path: Path) -> None:
    module = imported(export(*gemm("naive", "cpu"), "python", tmp_path)[0])
    with pytest.raises(kind, match=told):
        module.matmul(*change(*operands(3, 5, 4)))


def test_a_module_of_a_users_own_operation(tmp_path: Path) -> None:
    module = imported(export(*own(tmp_path, "cpu"), "python", tmp_path)[0])
    data = np.arange(6, dtype=np.float32)
    assert np.array_equal(module.spread(data, copies=2), [data, 2 * data])
    with pytest.raises(ValueError, match=r"spread: copies % 2 == 0 must hold \(copies are in pairs\), got n=6"):
        module.spread(data, copies=3)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'copies'"):
        module.spread(data)


class FakeCupy(ModuleType):
    """CuPy as far as an exported module uses it; launches are kept and not run."""

    class Array(np.ndarray):
        """A NumPy array with CuPy's address."""

        address = 0

        @property
        def data(self) -> SimpleNamespace:
            return SimpleNamespace(ptr=self.address)

    def __init__(self) -> None:
        super().__init__("cupy")
        self.ndarray = self.Array
        self.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
        self.launches: list[Any] = []
        self.compiled: list[Any] = []

    def array(self, data: Any) -> Any:
        return np.asarray(data).view(self.Array)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.full(shape, np.nan, dtype).view(self.Array)

    def ascontiguousarray(self, array: Any) -> Any:
        return array if array.flags.c_contiguous else array.copy()

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802 - CuPy's name
        self.compiled.append((code, options))
        kept = self.launches

        class Function(SimpleNamespace):
            def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
                kept.append((grid, block, arguments, shared_mem))

        return SimpleNamespace(get_function=lambda name: Function(name=name))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cuda_module_launches_the_kernel_as_it_was_tuned(layout: str, tmp_path: Path, cupy: FakeCupy) -> None:
    crowned, kernel, problem = gemm("register_tiled", "cuda", layout, (512, 512, 512))
    module = imported(export(crowned, kernel, problem, "python", tmp_path)[0])
    left, right = operands(256, 512, 128)
    a, b = cupy.array(left), cupy.array(right)
    module.matmul(a, b)
    c = module.matmul(cupy.array(np.asfortranarray(left)), b)
    asked = problem.operation.problem({"m": 256, "n": 512, "k": 128}, layout=layout)
    rule = kernel.launch(asked, kernel.default_config())
    assert len(cupy.compiled) == 1
    assert kernel.text.strip() in cupy.compiled[0][0]
    for grid, block, arguments, shared_mem in cupy.launches:
        assert (grid, block, shared_mem) == (rule.grid, rule.block, rule.shared_bytes)
        stored_a, stored_b, _, *scalars = arguments
        assert np.array_equal(stored_a, left.T if layout[0] == "t" else left)
        assert np.array_equal(stored_b, right.T if layout[1] == "t" else right)
        assert stored_a.flags.c_contiguous
        assert stored_b.flags.c_contiguous
        assert scalars == [256, 512, 128]
        assert {type(scalar) for scalar in scalars} == {np.int32}
    assert c is cupy.launches[-1][2][2]
    assert (c.shape, c.dtype) == ((256, 512), np.float32)


def test_a_cuda_module_reads_no_array_at_an_odd_address(tmp_path: Path, cupy: FakeCupy) -> None:
    module = imported(export(*gemm("naive", "cuda"), "python", tmp_path)[0])
    a, b = (cupy.array(each) for each in operands(4, 4, 4))
    a.address = 4
    module.matmul(a, b)
    passed = cupy.launches[0][2]
    assert passed[0] is not a
    assert passed[1] is b


def test_a_cuda_module_refuses_what_its_config_is_not_made_for(tmp_path: Path, cupy: FakeCupy) -> None:
    module = imported(export(*gemm("register_tiled", "cuda", "nn", (512, 512, 512)), "python", tmp_path)[0])
    with pytest.raises(ValueError, match=r"must hold \(the rows of A and B are divisible by VECTOR.*k=127"):
        module.matmul(*(cupy.array(each) for each in operands(256, 256, 127)))
    with pytest.raises(TypeError, match="a must be a CuPy array, got ndarray"):
        module.matmul(*operands(256, 256, 128))
    assert cupy.launches == []


# ---- CUDA sources


def test_a_cuda_source_holds_the_config_and_the_kernel(tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("register_tiled", "cuda", "nt")
    text = export(crowned, kernel, problem, "source", tmp_path)[0].read_text()
    for name, value in crowned.record.config.items():
        assert f"#define {name} {value}\n" in text
    assert kernel.text.strip() in text
    head, main = text.split("#ifdef TILE_TUNER_MAIN")
    assert "cudaError_t launch_matmul(const float* a, const float* b, float* c, long long m," in head
    assert "grid(unsigned(ceil_div(m, 128) * ceil_div(n, 128)))" in head
    assert "main" not in head.replace("MAIN", "").split("#include")[1]
    assert "int main(" in main


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", ["naive", "register_tiled", "own"])
def test_nvcc_compiles_it_alone(name: str, tmp_path: Path) -> None:
    given = own(tmp_path, "cuda") if name == "own" else gemm(name, "cuda", "tn")
    (path,) = export(*given, "source", tmp_path)
    command = [
        "nvcc",
        "-std=c++17",
        "-arch=sm_90a",
        "-DTILE_TUNER_MAIN",
        "-Xcompiler",
        "-Wall,-Wextra",
        path.name,
    ]
    done = subprocess.run([*command, "-o", "check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    host = [line for line in done.stderr.splitlines() if "warning" in line and "#" not in line]
    assert host == []


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


@GXX
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_exported_main_finds_a_right_kernel_right(layout: str, tmp_path: Path) -> None:
    (path,) = export(*gemm("naive", "cuda", layout, (67, 45, 33)), "source", tmp_path)
    code, told = run_on_host(path)
    assert code == 0, told
    assert re.search(r"67 x 45 x 33: error of c is 0\.\d+ of what is allowed", told)
    assert "0.001 s a launch, 0.000199 TFLOPS" in told
    assert told.endswith("PASSED\n")
    code, told = run_on_host(path, 1, 2, 3)
    assert (code, "1 x 2 x 3: error of c is" in told) == (0, True)


@GXX
@pytest.mark.parametrize(
    "change",
    [
        ("int p = 0; p < k;", "int p = 0; p < k - 1;"),
        ("    c[(size_t)row", "    if (row + 1 < m) c[(size_t)row"),
        ("sum.add(from_a[p * step_a],", "sum.add(1.0005f * from_a[p * step_a],"),
    ],
    ids=["a product left out", "a row left out", "products as imprecise as TF32"],
)
def test_the_exported_main_finds_a_wrong_kernel_wrong(change: tuple[str, str], tmp_path: Path) -> None:
    (path,) = export(*gemm("naive", "cuda", "nn", (67, 45, 33)), "source", tmp_path)
    code, told = run_on_host(path, change=change)
    assert code == 1, told
    assert told.endswith("FAILED\n")


@GXX
def test_the_main_of_a_users_own_operation_checks_by_fingerprint(tmp_path: Path) -> None:
    (path,) = export(*own(tmp_path, "cuda"), "source", tmp_path)
    code, told = run_on_host(path)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    code, told = run_on_host(path, 50, 2, 3)
    assert code == 0
    assert "50 x 2 x 3: spread is not checked at these dims" in told
    code, told = run_on_host(path, 50, 3, 3)
    assert (code, "launch: invalid value" in told) == (3, True)
    for change in (("(blockIdx.y + 1)", "(blockIdx.y + 1.0005f)"), ("i < n &&", "i < n - 1 &&")):
        code, told = run_on_host(path, change=change)
        assert (code, told.splitlines()[-1]) == (1, "FAILED"), change


def test_inputs_are_drawn_from_many_values() -> None:
    problem = gemm("naive", "cuda")[2]
    a, b = (drawn(tensor, place + 1) for place, tensor in enumerate(problem.inputs))
    assert a.shape == (300, 100)
    assert not np.array_equal(a.ravel()[:100], b.ravel()[:100])
    assert (abs(a.mean()) < 0.02, a.min() >= -1, a.max() < 1) == (True, True, True)
    assert abs(np.corrcoef(a.ravel()[:-1], a.ravel()[1:])[0, 1]) < 0.03
