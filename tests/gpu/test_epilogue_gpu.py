"""Products with an epilogue on a real GPU: kernels, library, calls, exports.

Alone: ``pytest tests/gpu/test_epilogue_gpu.py``.
"""

from pathlib import Path
from typing import Any

import pytest
from fixtures.callable_records import crowned
from fixtures.exported import champion, imported
from fixtures.gpu_starts import loaded, starts, wrong_library, wrong_starts

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import Problem
from tuner.devices.protocol import Device
from tuner.export import export
from tuner.python.decisions import device_info
from tuner.workers.workload import Workload

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records")
CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
ALL = "alpha+beta+bias-col+gelu+residual"
EPILOGUES = (ALL, "bias-col+gelu-tanh", "bias-row+silu", "alpha+relu", "bias-col+residual")
SIZES = [(512, 768, 640), (300, 1304, 200), (1001, 777, 333), (1, 4096, 512), (8, 8, 4096)]
DTYPES = ("bfloat16", "float16", "float32")


def problem_of(
    sizes: tuple[int, int, int], dtype: str, epilogue: str, layout: str = "nn", precision: str = ""
) -> Problem:
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)), dtype, layout, precision, epilogue)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_start_of_every_kernel_is_right(
    sizes: tuple[int, int, int], epilogue: str, dtype: str, device: Device
) -> None:
    """The library's own may round twice; `test_cublaslt_gpu` has what becomes of them."""
    problem = problem_of(sizes, dtype, epilogue, GEMM.layouts[sum(sizes) % 4])
    kernels = CATALOGUE.of("gemm", "cuda", (), "ieee", dtype, epilogue)
    found = [one for kernel in kernels if not kernel.is_library for one in starts(kernel, problem, device)]
    assert found
    assert wrong_starts(problem, found, device) == []


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_start_of_emulated_products_is_right(
    sizes: tuple[int, int, int], epilogue: str, device: Device
) -> None:
    """Of the product of packed operands, and of the exact kernel that computes what it does not take."""
    problem = problem_of(sizes, "float32", epilogue, GEMM.layouts[sum(sizes) % 4], "emulated")
    kernels = [each for each in CATALOGUE.serving(problem, "cuda") if "ieee" not in each.scope.precisions]
    found = [start for kernel in kernels for start in starts(kernel, problem, device)]
    assert found
    assert wrong_starts(problem, found, device) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", [*EPILOGUES, "bias-col+relu", "beta", "gelu", "residual"])
def test_the_library_is_right(epilogue: str, dtype: str, device: Device) -> None:
    problem = problem_of((520, 264, 136), dtype, epilogue, "tn")
    assert wrong_library(problem, device, GEMM.baselines["cuda"].allowance(problem)) == ""


def test_a_cuda_graph_replays_it(device: Device) -> None:
    problem = problem_of((304, 512, 136), "bfloat16", ALL, "nt")
    workload = Workload(device, problem, 3)
    (kernel,) = CATALOGUE.of("gemm", "cuda", ("half_tiled",))
    run = loaded(starts(kernel, problem, device)[0], problem, device, workload)
    for each in (run, device.library(workload)):
        workload.begin(workload.first)
        each()
        device.synchronize()
        assert device.samples_s(each, 2, "hot-graph")
        assert workload.check(GEMM.baselines["cuda"].allowance(problem))[1] == ""


def arrays_of(problem: Problem, seed: int = 1) -> dict[str, Any]:
    generator = cp.random.default_rng(seed)
    return {
        each.name: generator.standard_normal(each.shape, dtype="float32").astype(each.dtype)
        for each in problem.inputs
    }


def wanted(problem: Problem, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """The reference in float64, and what each element may be off."""
    reference = GEMM.reference(cp, problem, arrays)
    return reference, problem.tolerance * (cp.sqrt((reference**2).mean()) + cp.abs(reference))


@pytest.mark.parametrize("is_champion", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_calls_with_arrays_of_a_gpu(library: str, dtype: str, is_champion: bool, device: Device) -> None:
    problem = problem_of((304, 512, 136), dtype, ALL)
    kernel = "tiled" if dtype == "float32" else "half_tiled"
    if is_champion:
        crowned("gemm", problem.dims, dtype, "nn", kernel=kernel, device=device_info("cuda:0"), epilogue=ALL)
    arrays = arrays_of(problem)
    reference, allowed = wanted(problem, arrays)
    given = arrays
    if library == "torch":
        torch = pytest.importorskip("torch")
        given = {
            name: torch.from_dlpack(each.astype("float32")).to(getattr(torch, dtype))
            for name, each in arrays.items()
        }
    call = {
        "bias": given["bias"], "residual": given["residual"], "c": given["c_in"], "activation": "gelu",
        "alpha": 0.75, "beta": 0.5,
    }  # fmt: skip
    for _ in range(2):
        got = tuner.matmul(given["a"], given["b"], **call)
        got = cp.from_dlpack(got.float()) if library == "torch" else got
        # Without a kernel a 16-bit product is rounded once more.
        slack = 1 if is_champion else 2
        assert bool((cp.abs(got.astype("float64") - reference) <= slack * allowed).all())
    if is_champion:
        explained = tuner.explain(given["a"], given["b"], epilogue=ALL)
        assert (explained.use, explained.match, explained.kernel) == ("kernel", "exact", kernel)


@pytest.mark.parametrize("name", ["wgmma_tma", "half_tiled", "warp_tiled", "multivector"])
def test_an_exported_module_takes_the_operands(name: str, device: Device, tmp_path: Path) -> None:
    (kernel,) = CATALOGUE.of("gemm", "cuda", (name,))
    problem = problem_of((304, 512, 136), "bfloat16" if kernel.scope.dtypes else "float32", ALL)
    found = starts(kernel, problem, device)
    if not found:
        pytest.skip(f"{device.info.name} has no config of {name}")
    (path,) = export(champion(kernel, problem, dict(found[0][1])), kernel, problem, "python", tmp_path)
    arrays = arrays_of(problem)
    reference, allowed = wanted(problem, arrays)
    operands = [arrays[each] for each in Epilogue.read(ALL).operands]
    got = imported(path).matmul(arrays["a"], arrays["b"], *operands, alpha=0.75, beta=0.5)
    assert bool((cp.abs(got.astype("float64") - reference) <= allowed).all())
