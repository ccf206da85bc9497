"""cuBLASLt's algorithms on a real GPU: right or refused, in graphs, called on arrays, exported.

Alone: ``pytest tests/gpu/test_cublaslt_gpu.py``; about half a minute.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fixtures.callable_records import crowned
from fixtures.exported import champion, imported
from fixtures.gpu_starts import at_random, loaded, starts, wrong_starts

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.protocol import Device, LaunchFailed
from tuner.export import export
from tuner.python.decisions import device_info
from tuner.workers.workload import Workload

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records")
CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
(KERNEL,) = CATALOGUE.of("gemm", "cuda", ("cublaslt",))
SIZES = [(1024, 1536, 640), (1001, 777, 333), (16, 4096, 4096), (8, 8, 8), (300, 1301, 200), (256, 256, 16384)]
EPILOGUES = ("", "relu", "alpha+beta+bias-col+gelu-tanh", "bias-col+residual", "bias-col+relu", "beta")


def problem_of(sizes: tuple[int, int, int], dtype: str, layout: str = "nn", epilogue: str = "") -> Problem:
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)), dtype, layout, "", epilogue)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", KERNEL.scope.dtypes)
def test_proposals_and_configs_at_random_are_right_or_refused_or_round_twice(
    sizes: tuple[int, int, int], dtype: str, device: Device
) -> None:
    for place, epilogue in enumerate(EPILOGUES):
        problem = problem_of(sizes, dtype, GEMM.layouts[(place + sum(sizes)) % 4], epilogue)
        configs = [*starts(KERNEL, problem, device), *at_random(KERNEL, problem, device, (sizes, dtype), 24)]
        for complaint in wrong_starts(problem, configs, device):
            found = re.search(r", ([\d.]+) times what rounding explains", complaint)
            assert found, complaint
            assert float(found[1]) < 4, complaint


@pytest.mark.parametrize("dtype", KERNEL.scope.dtypes)
def test_most_of_what_is_declared_is_accepted(dtype: str, device: Device, hopper: None) -> None:
    problem = problem_of((1024, 1536, 640), dtype)
    workload, accepted = Workload(device, problem, 3), 0
    for start in at_random(KERNEL, problem, device, 5, 60):
        try:
            loaded(start, problem, device, workload)
        except LaunchFailed:
            continue
        accepted += 1
    assert accepted >= 30


@pytest.mark.parametrize("epilogue", ["", "bias-col+relu"])
def test_a_cuda_graph_replays_it(epilogue: str, device: Device) -> None:
    problem = problem_of((256, 256, 16384), "bfloat16", "nt", epilogue)
    workload = Workload(device, problem, 3)
    for start in starts(KERNEL, problem, device)[:3]:
        run = loaded(start, problem, device, workload)
        workload.begin(workload.first)
        run()
        device.synchronize()
        assert device.samples_s(run, 2, "cold-graph")
        assert workload.check()[1] == ""


@pytest.mark.parametrize("dtype", KERNEL.scope.dtypes)
def test_arrays_and_tensors_are_multiplied(dtype: str, device: Device, ran: list[str]) -> None:
    config = Config(KERNEL.first_configs()[1])
    crowned(
        "gemm", {"m": 304, "n": 512, "k": 4096}, dtype, "nt", config, kernel="cublaslt",
        device=device_info("cuda:0"),
    )  # fmt: skip
    torch = pytest.importorskip("torch")
    for _ in range(3):
        a, b = (torch.randn(rows, 4096, device="cuda", dtype=getattr(torch, dtype)) for rows in (304, 512))
        right, rough = a.double() @ b.double().T, 1e-4 if dtype == "float32" else 2**-7
        torch.testing.assert_close(tuner.matmul(a, b.T).double(), right, rtol=rough, atol=64 * rough)
        if dtype != "bfloat16":
            got = tuner.matmul(cp.from_dlpack(a), cp.from_dlpack(b).T)
            torch.testing.assert_close(torch.from_dlpack(got).double(), right, rtol=rough, atol=64 * rough)
    assert set(ran) == {"cublaslt"}


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_graph_may_be_captured_before_any_call(place: int, device: Device, ran: list[str]) -> None:
    config, shape = KERNEL.first_configs()[place - 1], {"m": 8, "n": 1024, "k": 4096}
    h200 = device_info("cuda:0")
    crowned("gemm", shape, "bfloat16", "nt", config, kernel="cublaslt", device=h200)
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16) for rows in (8, 1024))
    out = torch.full((8, 1024), torch.nan, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tuner.matmul(a, b.T, out)
    assert set(ran) == {"cublaslt"}
    graph.replay()
    torch.testing.assert_close(out.double(), a.double() @ b.double().T, rtol=2**-7, atol=0.5)


@pytest.mark.parametrize(("dtype", "epilogue"), [("float32", ""), ("float16", "bias-col+relu")])
def test_exports_compute_it_without_the_package(
    dtype: str, epilogue: str, device: Device, tmp_path: Path
) -> None:
    problem = problem_of((304, 512, 4096), dtype, "nt", epilogue)
    told = champion(KERNEL, problem, dict(KERNEL.first_configs()[1]))
    (path,) = export(told, KERNEL, problem, "python", tmp_path)
    a, b = (cp.random.default_rng(1).standard_normal((rows, 4096), dtype="float32") for rows in (304, 512))
    a, b, bias = a.astype(dtype), b.astype(dtype), cp.ones(512, dtype)
    right = a.astype("float64") @ b.astype("float64").T
    right = cp.maximum(right + 1, 0) if epilogue else right
    got = imported(path).matmul(a, b.T, *([bias] if epilogue else []))
    rough = 1e-4 if dtype == "float32" else 2**-9
    cp.testing.assert_allclose(got.astype("float64"), right, rtol=rough, atol=64 * rough)
    if shutil.which("nvcc"):
        (source,) = export(told, KERNEL, problem, "source", tmp_path)
        command = [
            "nvcc", "-std=c++17", "-arch=native", "-DTILE_TUNER_MAIN", source, "-o", "check", "-lcublasLt",
        ]  # fmt: skip
        subprocess.run(command, cwd=tmp_path, check=True)
        assert "PASSED" in subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True).stdout


def test_a_study_tells_the_best_of_the_proposals_beside_the_default(hopper: None) -> None:
    kernels = ("cublaslt", "half_tiled")
    found = tuner.tune("gemm 512 640 768", dtype="bfloat16", kernels=kernels, seconds=8, progress=False)
    assert found.baseline.kernel == "cublasGemmEx"
    finalists = {name for pair in found.champion.pairs for name in (pair.one, pair.other)}
    assert [name for name in finalists if name.startswith("cublaslt PROPOSAL=") and "PROPOSAL=0" not in name]
