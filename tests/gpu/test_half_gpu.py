"""16-bit products on a real GPU: right in all layouts and shapes, called with tensors, captured, exported.

Alone: ``pytest tests/gpu/test_half_gpu.py``; about a minute.
"""

from pathlib import Path

import pytest
from fixtures.callable_records import crowned
from fixtures.exported import champion, imported
from fixtures.gpu_starts import at_random, loaded, starts, wrong_library, wrong_starts

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.problem import Problem
from tuner.devices.protocol import Device
from tuner.export import export
from tuner.python.decisions import device_info
from tuner.workers.workload import Workload

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records", "hopper")
CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
(KERNEL,) = CATALOGUE.of("gemm", "cuda", ("wgmma_tma",))
(PLAIN,) = CATALOGUE.of("gemm", "cuda", ("half_tiled",))
(THIN,) = CATALOGUE.of("gemm", "cuda", ("multivector",))
SIZES = [
    (1024, 1536, 640), (1000, 1304, 776), (1001, 777, 333), (1, 4096, 1024), (4096, 2, 512), (8, 8, 8),
    (300, 1301, 200), (192, 320, 4096), (2048, 24, 1024), (40, 2056, 520),
]  # fmt: skip
#: What it is for, and others: lines that are not aligned, sides that are no power of two, k within a share.
THIN_SIZES = [
    (1, 8192, 8192), (8, 4096, 4096), (4096, 2, 8192), (8192, 4, 4096), (3, 4100, 4098), (4095, 7, 4095),
    (5, 8, 8200),
]  # fmt: skip
DTYPES = ("bfloat16", "float16")


def problem_of(sizes: tuple[int, int, int], dtype: str, layout: str = "nn") -> Problem:
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)), dtype, layout)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("layout", GEMM.layouts)
def test_starts_and_configs_at_random_are_right(
    sizes: tuple[int, int, int], layout: str, device: Device
) -> None:
    problem = problem_of(sizes, DTYPES[sum(sizes) % 2], layout)
    found, drawn = starts(KERNEL, problem, device), at_random(KERNEL, problem, device, (sizes, layout))
    assert found
    assert wrong_starts(problem, [*found, *starts(PLAIN, problem, device), *drawn], device) == []


@pytest.mark.parametrize("sizes", THIN_SIZES, ids=str)
@pytest.mark.parametrize("layout", GEMM.layouts)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_start_for_few_rows_or_columns_is_right(
    sizes: tuple[int, int, int], layout: str, dtype: str, device: Device
) -> None:
    problem = problem_of(sizes, dtype, layout)
    found = starts(THIN, problem, device)
    assert found
    assert wrong_starts(problem, found, device) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_library_is_right(dtype: str, device: Device) -> None:
    assert wrong_library(problem_of((520, 264, 136), dtype, "tn"), device) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_pytorch_are_multiplied(dtype: str, device: Device) -> None:
    torch = pytest.importorskip("torch")
    _, config = starts(KERNEL, problem_of((304, 512, 136), dtype, "nt"), device)[0]
    dims = {"m": 304, "n": 512, "k": 136}
    crowned("gemm", dims, dtype, "nt", config, kernel="wgmma_tma", device=device_info("cuda:0"))
    kind = getattr(torch, dtype)
    for _ in range(3):
        a, b = (torch.randn(rows, 136, device="cuda", dtype=kind) for rows in (304, 512))
        b = b.T
        got = tuner.matmul(a, b)
        assert got.dtype == kind
        torch.testing.assert_close(got, (a.double() @ b.double()).to(kind), rtol=2**-7, atol=2**-5)


def test_a_cuda_graph_replays_it(device: Device) -> None:
    problem = problem_of((304, 512, 136), "bfloat16", "nt")
    workload = Workload(device, problem, 3)
    run = loaded(starts(KERNEL, problem, device)[0], problem, device, workload)
    run()
    device.synchronize()
    assert device.samples_s(run, 2, "hot-graph")
    assert workload.check()[1] == ""


@pytest.mark.parametrize(("sizes", "layout"), [((304, 512, 136), "nt"), ((301, 501, 133), "nn")])
def test_an_exported_module_makes_its_maps(
    sizes: tuple[int, int, int], layout: str, device: Device, tmp_path: Path
) -> None:
    problem = problem_of(sizes, "bfloat16", layout)
    _, config = starts(KERNEL, problem, device)[0]
    (path,) = export(champion(KERNEL, problem, dict(config)), KERNEL, problem, "python", tmp_path)
    a, b = (
        cp.random.default_rng(1).standard_normal(shape, dtype="float32").astype("bfloat16")
        for shape in ((sizes[0], sizes[2]), (sizes[2], sizes[1]))
    )
    b = cp.ascontiguousarray(b.T).T if layout[1] == "t" else b
    got = imported(path).matmul(a, b)
    wanted = a.astype("float64") @ b.astype("float64")
    allowed = problem.tolerance * (cp.sqrt((wanted * wanted).mean()) + cp.abs(wanted))
    assert bool((cp.abs(got.astype("float64") - wanted) <= allowed).all())
