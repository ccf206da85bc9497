"""Exported CUDA sources: nvcc takes them alone, and their main tells a right kernel from a wrong one."""

import re
import shutil
from pathlib import Path

import pytest
from fixtures.exported import CATALOGUE, GXX, champion, gemm, nvcc_warnings, own, run_on_host

from tuner.export import export


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
