"""Exports of kernels whose run is more than a launch: padded arrays, a vector in pieces, own memory."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.exported import CATALOGUE, GXX, champion, gemm, imported, nvcc_warnings, own, run_on_host

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.export import export

PADDED = {"BLOCK_X": 8, "BLOCK_Y": 4, "ACCUMULATE": "plain", "PITCH": 32}
SPLIT = {
    "BM": 64, "BN": 64, "BK": 16, "TM": 8, "TN": 4, "LANES_M": 4, "STAGES": 3, "VECTOR": 4, "SWATH": 8,
    "BLOCKS_PER_SM": 1, "SPLIT_K": 4, "BLOCKS": 0, "TURN": "relay", "PITCH": 4, "ORDER": "snake",
    "ARRIVE": "middle", "UNTIE": 1,
}  # fmt: skip
RNG = np.random.default_rng(0)
PIECES = {"BLOCK": 32, "PIECE": 256, "UNROLL": 1}


def given(operation: str, name: str, config: dict, layout: str, *sizes: int) -> tuple[Any, Kernel, Problem]:
    declared = CATALOGUE.operation(operation)
    problem = declared.problem(dict(zip(declared.dims, sizes, strict=True)), layout=layout)
    (kernel,) = CATALOGUE.of(operation, "cuda", (name,))
    return champion(kernel, problem, config), kernel, problem


def padded(layout: str = "nn") -> tuple[Any, Kernel, Problem]:
    return given("gemm", "naive", PADDED, layout, 67, 45, 33)


def in_pieces(layout: str = "n") -> tuple[Any, Kernel, Problem]:
    return given("gemv", "constant", PIECES, layout, 67, 600)


@GXX
@pytest.mark.parametrize(
    "case",
    [padded("nn"), padded("tt"), in_pieces("n"), in_pieces("t")],
    ids=["padded nn", "padded tt", "pieces n", "pieces t"],
)
def test_the_exported_main_finds_it_right(case: tuple, tmp_path: Path) -> None:
    (path,) = export(*case, "source", tmp_path)
    code, told = run_on_host(path)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    assert run_on_host(path, *(1 for _ in case[2].shape))[0] == 0


@GXX
def test_the_exported_main_finds_a_piece_left_out(tmp_path: Path) -> None:
    (path,) = export(*in_pieces(), "source", tmp_path)
    code, told = run_on_host(path, change=("first < size &&", "first + 256 < size &&"))
    assert (code, told.splitlines()[-1]) == (1, "FAILED"), told


def test_the_binary_says_what_belongs_to_a_run(tmp_path: Path) -> None:
    rules, in_parts, own = (
        json.loads(export(*case, "binary", tmp_path)[1].read_text())["rules"]
        for case in (padded(), in_pieces(), given("gemm", "warp_tiled", SPLIT, "nn", 67, 45, 331))
    )
    assert rules["padded"][0] == {"tensor": "a", "shape": ["ceil_div(m, 1)", "ceil_div(k, 32) * 32"]}
    assert in_parts["pieces"] == {"symbol": "piece", "tensor": "x", "elements": 256}
    assert "padded" not in in_parts
    names = {"m": 67, "n": 45, "k": 33, "ceil_div": lambda x, y: -(-x // y)}
    counters = 256  # of 2 x 1 tiles
    assert eval(own["workspace"]["zeroed_bytes"], names) == counters
    assert eval(own["workspace"]["bytes"], names) == counters + 2 * 4 * 64 * 64 * 4


def test_a_module_pads_its_arrays(tmp_path: Path, cupy: Any) -> None:
    def compute(a: Any, b: Any, c: Any, m: int, n: int, k: int) -> None:
        assert (a.shape[1] % 32, b.shape[1] % 32, c.shape[1] % 32) == (0, 0, 0)
        c[:m, :n] = a[:m, :k] @ b[:k, :n]

    cupy.compute = compute
    module = imported(export(*padded(), "python", tmp_path)[0])
    a, b = (cupy.array(RNG.random(shape, dtype=np.float32)) for shape in ((50, 33), (33, 45)))
    np.testing.assert_allclose(module.matmul(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-5)


def test_a_module_takes_its_vector_in_pieces(tmp_path: Path, cupy: Any) -> None:
    def compute(a: Any, _: Any, y: Any, m: int, n: int, first: int) -> None:
        count = min(256, n - first)
        before = 0 if first == 0 else y
        y[...] = before + a.reshape(m, n)[:, first : first + count] @ cupy.piece[:count]

    cupy.compute = compute
    module = imported(export(*in_pieces(), "python", tmp_path)[0])
    a, x = (cupy.array(RNG.random(shape, dtype=np.float32)) for shape in ((5, 700), (700,)))
    np.testing.assert_allclose(module.matvec(a, x), np.asarray(a) @ np.asarray(x), rtol=1e-5)


# --- sources ----------------------------------------


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


SHARES = {"SPLIT_K": 2, "STORE": "registers", "CLUSTER_M": 1, "WIDTH": 128}
BY_NVCC = {
    "register_tiled tn float32": {}, "wgmma_tma nt bfloat16": {}, "wgmma_tma tn float16": SHARES,
    "wgmma_tma nn bfloat16": {**SHARES, "ADD": "after", "BLOCKS": 0}, "half_tiled nn bfloat16": {},
    "wgmma_fp8 nt float8_e4m3fn": {},
}  # fmt: skip


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", BY_NVCC)
def test_nvcc_compiles_it_alone(name: str, tmp_path: Path) -> None:
    kernel_name, layout, dtype = name.split()
    (kernel,) = CATALOGUE.of("gemm", "cuda", (kernel_name,), dtype=dtype)
    problem = CATALOGUE.operation("gemm").problem({"m": 304, "n": 512, "k": 128}, dtype, layout)
    case = champion(kernel, problem, {**kernel.default_config(), **BY_NVCC[name]}), kernel, problem
    assert nvcc_warnings(export(*case, "source", tmp_path)[0]) == []


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
@pytest.mark.parametrize("change", [
    ("int p = 0; p < k;", "int p = 0; p < k - 1;"),
    ("    c[(size_t)row", "    if (row + 1 < m) c[(size_t)row"),
    ("sum.add(from_a[p * step_a],", "sum.add(1.0005f * from_a[p * step_a],"),
], ids=["a product left out", "a row left out", "products as imprecise as TF32"])  # fmt: skip
def test_the_exported_main_finds_a_wrong_kernel_wrong(change: tuple[str, str], tmp_path: Path) -> None:
    (path,) = export(*gemm("naive", "cuda", "nn", (67, 45, 33)), "source", tmp_path)
    code, told = run_on_host(path, change=change)
    assert code == 1, told
    assert told.endswith("FAILED\n")


@GXX
def test_the_main_of_an_operation_without_a_c_reference_says_that_nothing_is_checked(tmp_path: Path) -> None:
    (path,) = export(*own(tmp_path, "cuda"), "source", tmp_path)
    code, told = run_on_host(path)
    assert (code, told.splitlines()[-1].partition(":")[0]) == (1, "NOT CHECKED"), told
    code, told = run_on_host(path, 50, 3, 3)
    assert (code, "launch: invalid value" in told) == (3, True)
