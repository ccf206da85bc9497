"""The emulated gemm on a real GPU of sm_90: right, to the bit where it falls back, packed, exported, captured.

Alone: ``pytest tests/gpu/test_emulated_gpu.py``; about a minute.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.callable_records import crowned
from fixtures.exported import champion, imported
from fixtures.gpu_starts import loaded
from operands_drawn import drawn

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.protocol import Device
from tuner.export import export
from tuner.python.decisions import device_info
from tuner.workers.further_checks import broken_promise, compared
from tuner.workers.workload import Workload

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records", "hopper")
GEMM = builtin().operation("gemm")
(KERNEL,) = builtin().of("gemm", "cuda", ("emulated",))
#: Beside what finals draw: the inputs that the promise names. True where the plain kernel must compute.
LIST = {
    "normal": False, "uniform": False, "positive": False, "lognormal:2": False, "lognormal:4": True,
    "rows": None,
    "subnormal": None, "largest": True, "outlier:1e4": False, "outlier:1e8": True, "outlier_zeros:1e4": False,
    "outlier_zeros:1e8": True, "integers:16": False, "zeros": False, "empty": False, "relu": False,
    "identity": True, "inf": True, "nan": True,
}  # fmt: skip
CASES = [((1024, 1024, 2048), "nn"), ((301, 501, 703), "tn"), ((512, 640, 256), "nt"), ((257, 129, 4096), "tt")]


def problem_of(sizes: tuple[int, int, int], layout: str = "nn") -> Problem:
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)), layout=layout, precision="emulated")


def configs(problem: Problem, device: Device) -> list[Config]:
    return [
        config
        for config in KERNEL.first_configs()
        if all(each.rule(problem, device.info, config) for each in KERNEL.constraints)
    ]


@pytest.mark.parametrize(("sizes", "layout"), CASES)
def test_it_is_right_and_keeps_its_promise(sizes: tuple[int, int, int], layout: str, device: Device) -> None:
    problem = problem_of(sizes, layout)
    workload = Workload(device, problem, 7)
    for config in configs(problem, device):
        run = loaded((KERNEL, config), problem, device, workload)
        for _ in range(2):
            workload.begin(workload.first)
            run()
            device.synchronize()
            assert workload.check()[1] == "", config
        assert broken_promise(device, workload, run) == "", config


@pytest.mark.parametrize(("sizes", "layout"), [*CASES, ((1024, 1280, 512), "tt")])
def test_every_kind_of_inputs_keeps_the_promise(
    sizes: tuple[int, int, int], layout: str, device: Device
) -> None:
    problem = problem_of(sizes, layout)
    workload = Workload(device, problem, 7)
    config, library = configs(problem, device)[0], device.library(workload)
    run, broken = loaded((KERNEL, config), problem, device, workload), []
    for kind, falls_back in LIST.items():
        a, b = drawn(kind, *sizes)
        placed(workload, a, b, layout)
        before = tuner.fallbacks()
        wrong = compared(device, workload, run, library)
        broken += [f"{kind}: {wrong}"] if wrong else []
        if falls_back is not None and (tuner.fallbacks() > before) is not falls_back:
            broken.append(f"{kind}: {tuner.fallbacks() - before} products fell back")
        if kind.startswith("integers"):
            run()
            exact = a.astype("f8") @ b.astype("f8")
            assert (abs(a) @ abs(b)).max() <= 2**22
            assert bool((workload.arrays["c"] == cp.asarray(exact)).all())
    assert broken == []


#: Fills the shared memory of all multiprocessors.
STALE = r"""
extern "C" __global__ void fill(float value) {
    extern __shared__ float memory[];
    for (int i = threadIdx.x; i < 56 * 1024; i += blockDim.x) memory[i] = value;
}
"""


@pytest.mark.parametrize(("sizes", "layout"), [((88, 650, 768), "tn"), ((346, 1801, 527), "nn")])
def test_what_lies_past_an_edge_changes_no_bit(
    sizes: tuple[int, int, int], layout: str, device: Device
) -> None:
    problem = problem_of(sizes, layout)
    workload = Workload(device, problem, 7)
    fill = cp.RawKernel(STALE, "fill")
    fill.max_dynamic_shared_size_bytes = 224 * 1024
    for config in configs(problem, device):
        run, results = loaded((KERNEL, config), problem, device, workload), []
        for value in (1.0, -1.0):
            workload.begin(workload.first)
            fill((4 * 132,), (1024,), (cp.float32(value),), shared_mem=224 * 1024)
            device.synchronize()
            run()
            device.synchronize()
            results.append(workload.fingerprints())
        assert results[0] == results[1], config


def placed(workload: Workload, a: Any, b: Any, layout: str) -> None:
    """Puts operands into the workload as the layout stores them."""
    for name, array, way in (("a", a, layout[0]), ("b", b, layout[1])):
        workload.arrays[name].set((array.T if way == "t" else array).copy())


def test_it_runs_in_a_graph(device: Device) -> None:
    problem = problem_of((512, 512, 512))
    workload = Workload(device, problem, 7)
    run = loaded((KERNEL, configs(problem, device)[0]), problem, device, workload)
    assert min(device.samples_s(run, 3, "cold-graph")) > 0
    assert workload.check()[1] == ""


def emulated_champion(problem: Problem, device: Device, time_s: float = 1e-3) -> Config:
    config = configs(problem, device)[0]
    crowned(
        "gemm", problem.dims, layout=problem.layout, kernel="emulated", device=device_info("cuda:0"),
        precision="emulated", config=dict(config), time_s=time_s,
    )  # fmt: skip
    return config


def operands(problem: Problem) -> tuple[Any, Any]:
    rng = cp.random.default_rng(3)
    m, n, k = (problem.dims[dim] for dim in "mnk")
    return rng.standard_normal((m, k), dtype=cp.float32), rng.standard_normal((k, n), dtype=cp.float32)


def error(got: Any, a: Any, b: Any) -> float:
    exact = a.astype(cp.float64) @ b.astype(cp.float64)
    return float(cp.linalg.norm(got - exact) / cp.linalg.norm(exact))


def test_callables_compute_count_and_fall_back_to_the_bit(device: Device) -> None:
    problem = problem_of((512, 768, 1024))
    config = emulated_champion(problem, device)
    a, b = operands(problem)
    before = tuner.fallbacks()
    assert error(tuner.matmul(a, b, precision="emulated"), a, b) < 5e-7
    assert tuner.fallbacks() == before
    a[5, 5] = cp.nan
    got = tuner.matmul(a, b, precision="emulated")
    assert tuner.fallbacks() == before + 1
    fallback = KERNEL.scope.fallback
    plain_problem = replace(problem, precision="ieee")
    plain = render(fallback.kernel, plain_problem, Config(fallback.config(config)))
    from tuner.devices.cuda.calling import Loaded

    wanted = cp.empty_like(got)
    Loaded(plain, plain_problem, device.info, 0).run(a, b, wanted)
    assert bool((got.view(cp.uint32) == wanted.view(cp.uint32)).all())


def test_a_graph_runs_what_costs_other_calls_of_pytorch_too_much(device: Device) -> None:
    torch = pytest.importorskip("torch")
    problem = problem_of((512, 768, 1024))
    emulated_champion(problem, device, time_s=1e-5)
    a, b = map(torch.from_dlpack, operands(problem))
    told = tuner.explain(a, b, precision="emulated")
    assert (told.use, "outside of CUDA graphs" in told.why) == ("cuBLAS", True)
    plain, out = torch.mm(a, b), torch.empty(512, 768, device="cuda")
    assert torch.equal(tuner.matmul(a, b, precision="emulated"), plain)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # on a stream that no call has met: memory is made beside the capture
        tuner.matmul(a, b, out, precision="emulated")
        tuner.matmul(a, b, precision="emulated")
    for _ in range(2):
        out.zero_()
        graph.replay()
        assert error(cp.from_dlpack(out), *operands(problem)) < 5e-7
        assert not torch.equal(out, plain), "it is the kernel's"


def test_a_packed_operand_gives_the_same_and_falls_back_as_well(device: Device) -> None:
    problem = problem_of((512, 768, 1024))
    emulated_champion(problem, device)
    a, b = operands(problem)
    packed = tuner.pack(b, rows=512)
    assert packed.bytes > 2 * b.nbytes, "it is packed, not a copy alone"
    for _ in range(2):
        got = tuner.matmul(a, packed)
        assert bool((got == tuner.matmul(a, b, precision="emulated")).all())
    before = tuner.fallbacks()
    a[0, 0] = cp.inf
    assert not bool(cp.isfinite(tuner.matmul(a, packed)[0]).any())
    assert tuner.fallbacks() > before
    used = cp.get_default_memory_pool().used_bytes()
    size = packed.bytes
    del packed
    assert cp.get_default_memory_pool().used_bytes() <= used - size


def test_the_exported_module_computes(device: Device, tmp_path: Path) -> None:
    problem = problem_of((512, 768, 1024))
    case = champion(KERNEL, problem, dict(configs(problem, device)[0]))
    (path,) = export(case, KERNEL, problem, "python", tmp_path)
    a, b = operands(problem)
    module = imported(path)
    for _ in range(2):
        assert error(module.matmul(a, b), a, b) < 5e-7
    assert module.fallbacks() == 0
    a[1, 1] = cp.nan
    assert bool(cp.isnan(module.matmul(a, b)[1]).all())
    assert module.fallbacks() == 1
