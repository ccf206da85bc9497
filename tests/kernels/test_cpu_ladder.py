"""CPU kernels of gemv and transpose, and gemm's vectorised, against float64 on edge shapes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import numpy as np
import pytest
from sampling import edge_problems, kernels, name_of, usual_problem

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config

#: Elements before and after the output that a kernel must not write.
GUARD = 64
POISON = 0xAA
CPU = DeviceInfo(name="small", kind="cpu", cores=4, vector_bytes=64, l1_bytes=32 << 10, l2_bytes=1 << 25)
Build = Callable[[Kernel, Problem, Config], Callable[..., None]]
#: Few, as each compiles for seconds; between them every branch of a kernel.
CONFIGS = {
    ("gemm", "vectorised"): [{"WIDTH": 4, "THREADS": 3}, {"WIDTH": 32, "THREADS": 1}],
    ("gemv", "naive"): [{"THREADS": 1}, {"THREADS": 2}],
    ("gemv", "blocked"): [
        {"BLOCK": 16, "AT_ONCE": 1, "THREADS": 1},
        {"BLOCK": 16, "AT_ONCE": 2, "THREADS": 2},
        {"BLOCK": 32, "AT_ONCE": 4, "THREADS": 1},
    ],
    ("gemv", "streaming"): [
        {"WIDTH": 16, "AT_ONCE": 4, "UNROLL": 2, "BLOCK": 16, "PARTS": 1, "PREFETCH": 512, "THREADS": 1},
        {"WIDTH": 2, "AT_ONCE": 2, "UNROLL": 2, "BLOCK": 32, "PARTS": 4, "PREFETCH": 0, "THREADS": 3},
    ],
    ("read", "read"): [{"THREADS": 2}],
    ("copy", "copy"): [{"STREAM": True, "THREADS": 2}, {"STREAM": False, "THREADS": 3}],
    ("multiply_add", "multiply_add"): [{"LANES": 64, "THREADS": 2}],
    ("transpose", "naive"): [{"THREADS": 1}],
    ("transpose", "blocked"): [{"BLOCK": 8, "THREADS": 1}, {"BLOCK": 16, "THREADS": 2}],
    ("transpose", "micro_tiles"): [
        {"WIDTH": 4, "ROWS": 16, "COLUMNS": 32, "STREAM": False, "PREFETCH": 0, "THREADS": 3},
        {"WIDTH": 8, "ROWS": 32, "COLUMNS": 16, "STREAM": True, "PREFETCH": 64, "THREADS": 1},
        {"WIDTH": 16, "ROWS": 16, "COLUMNS": 16, "STREAM": True, "PREFETCH": 32, "THREADS": 2},
    ],
}
CASES = [
    (operation, kernel, config, number)
    for operation, kernel in kernels("cpu")
    for number, config in enumerate(CONFIGS.get((operation.name, kernel.name), ()))
]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("rendered")

    def compiled(kernel: Kernel, problem: Problem, config: Config) -> Callable[..., None]:
        rendered = render(kernel, problem, config)
        name = f"ladder_{rendered.hash}"
        if name not in sys.modules:
            path = folder / f"{name}.py"
            path.write_text(rendered.text, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(name, path)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return getattr(sys.modules[name], rendered.entry)

    return compiled


def check(run: Callable[..., None], problem: Problem, shift: int) -> None:
    """Runs on an output that begins `shift` elements after an aligned address."""
    random = np.random.default_rng(1)
    inputs = [(1000 * random.standard_normal(each.shape)).astype(each.dtype) for each in problem.inputs]
    (out,) = problem.outputs
    size = np.dtype(out.dtype).itemsize
    whole = np.full(out.bytes + 2 * GUARD * size + 64, POISON, np.uint8)
    start = -whole.ctypes.data % 64 + GUARD * size + shift * size
    whole[start : start + out.bytes] = 0xFF
    result = whole[start : start + out.bytes].view(out.dtype).reshape(out.shape)
    run(*inputs, result, *problem.dims.values())
    named = {each.name: array for each, array in zip(problem.inputs, inputs, strict=True)}
    reference = problem.operation.reference(np, problem, named)
    allowed = problem.tolerance * (np.sqrt(np.mean(reference**2)) + np.abs(reference))
    assert np.all(np.abs(result - reference) <= allowed), str(problem)
    assert np.all(whole[:start] == POISON), f"{problem}: written before the output"
    assert np.all(whole[start + out.bytes :] == POISON), f"{problem}: written after the output"


@pytest.mark.parametrize(("operation", "kernel", "config", "number"), CASES, ids=name_of)
def test_agrees_with_float64(
    operation: Operation, kernel: Kernel, config: dict, number: int, build: Build
) -> None:
    # Configs take dtypes in turn, and every layout.
    dtype = operation.dtypes[number % len(operation.dtypes)]
    for layout in operation.layouts:
        usual = usual_problem(operation, layout, dtype)
        problems = edge_problems(kernel, Config(config), usual, count=12, seed=number, device=CPU)
        problems.append(operation.problem(dict.fromkeys(operation.dims, 48), dtype, layout))
        run = build(kernel, usual, Config(config))
        for place, problem in enumerate(problems):
            check(run, problem, shift=place % 4)


def test_a_kernel_that_goes_round_the_cache_is_refused_where_rows_are_not_aligned() -> None:
    (kernel,) = [kernel for _, kernel in kernels("cpu") if kernel.name == "micro_tiles"]
    config = Config(CONFIGS["transpose", "micro_tiles"][1])
    (operation,) = {each.name: each for each, found in kernels("cpu") if found.name == kernel.name}.values()
    rules = [rule for rule in kernel.constraints if "aligned" in rule.sentence]
    verdicts = [
        rule.rule(operation.problem({"m": m, "n": 64}), CPU, config) for rule in rules for m in (64, 65)
    ]
    assert verdicts == [True, False]
