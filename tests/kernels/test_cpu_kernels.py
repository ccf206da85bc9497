"""Every CPU kernel of gemm: declarations, and results against float64 on edge shapes in all layouts."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fences import stays_inside

from tuner.declare.catalogue import builtin, from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cpu.kind import cpu_info

CATALOGUE = builtin()
#: With every dtype that the kernels can do.
GEMM = replace(CATALOGUE.operation("gemm"), dtypes=("float32", "float64"))
KERNELS = {kernel.name: kernel for kernel in CATALOGUE.of("gemm", "cpu")}
LAYOUTS = ("nn", "nt", "tn", "tt")
#: Elements before and after an array that a kernel must not use: NaN, which would show in the result.
GUARD = 64
SMALL = DeviceInfo(name="small", kind="cpu", cores=2, vector_bytes=32, l1_bytes=32 << 10, l2_bytes=1 << 20)
Compiled = Callable[..., None]
Build = Callable[[Kernel, Problem, Config], Compiled]


def problem(m: int, n: int, k: int, layout: str = "nn", dtype: str = "float32") -> Problem:
    return GEMM.problem({"m": m, "n": n, "k": k}, dtype, layout)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Renders a kernel and imports it as a module, once for equal text."""
    folder, known = tmp_path_factory.mktemp("rendered"), {}

    def build(kernel: Kernel, problem: Problem, config: Config) -> Compiled:
        rendered = render(kernel, problem, config)
        if rendered.hash not in known:
            path = folder / f"kernel_{rendered.hash}.py"
            path.write_text(rendered.text, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            known[rendered.hash] = getattr(module, rendered.entry)
        return known[rendered.hash]

    return build


def guarded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A dense copy of values in the middle of a longer array of NaN; returns both."""
    whole = np.full(values.size + 2 * GUARD, np.nan, values.dtype)
    inside = whole[GUARD : GUARD + values.size].reshape(values.shape)
    inside[...] = values
    return whole, inside


def check(run: Compiled, problem: Problem) -> None:
    """Runs on poisoned output and compares with float64; nothing around the output may change."""
    random = np.random.default_rng(1)
    inputs = {
        tensor.name: guarded(random.standard_normal(tensor.shape).astype(tensor.dtype))[1]
        for tensor in problem.inputs
    }
    (out,) = problem.outputs
    whole, result = guarded(np.full(out.shape, np.nan, out.dtype))
    run(*inputs.values(), result, *problem.dims.values())
    reference = problem.operation.reference(np, problem, inputs)
    allowed = problem.tolerance * (np.sqrt(np.mean(reference**2)) + np.abs(reference))
    assert np.all(np.abs(result - reference) <= allowed), str(problem)
    assert np.all(np.isnan(whole[:GUARD])), f"{problem}: written before the output"
    assert np.all(np.isnan(whole[-GUARD:])), f"{problem}: written after the output"


SHAPES = ((1, 1, 1), (1, 37, 5), (37, 1, 70), (3, 5, 1), (65, 33, 129), (17, 100, 64), (64, 64, 64))


@pytest.mark.parametrize(
    ("name", "layouts", "config"),
    [
        ("naive", LAYOUTS, {"THREADS": 1}),
        ("blocked", ("nn", "tt"), {"BLOCK": 8, "TRANSPOSE_B": False, "THREADS": 1}),
        ("blocked", ("nt", "tn"), {"BLOCK": 64, "TRANSPOSE_B": True, "THREADS": 1}),
    ],
    ids=["naive", "blocked-8", "blocked-64-transposing"],
)
def test_agrees_with_float64(compiled: Build, name: str, layouts: tuple[str, ...], config: dict) -> None:
    for layout in layouts:
        for m, n, k in SHAPES:
            each = problem(m, n, k, layout)
            check(compiled(KERNELS[name], each, Config(config)), each)


def tiles(width: int, mr: int, nr: int, threads: int = 1, **others: object) -> dict:
    """A config of `packed` with blocks so small that small shapes have many of them, and edges everywhere."""
    blocks = {"WIDTH": width, "MR": mr, "NR": nr, "MC": 2 * mr, "KC": 40, "NC": 2 * nr}
    return blocks | {"UNROLL": 2, "PREFETCH": 0, "THREADS": threads, "SHARE": "B", "SLABS": 1} | others


@pytest.mark.parametrize(
    ("dtype", "layout", "config"),
    [
        ("float32", "nn", tiles(16, 8, 48, PREFETCH=8)),
        ("float32", "nt", tiles(16, 14, 32, UNROLL=4)),
        ("float32", "tn", tiles(8, 6, 16)),
        ("float32", "tt", tiles(4, 5, 12, UNROLL=1)),
        ("float32", "tt", tiles(8, 4, 24, threads=4, SHARE="both", SLABS=2)),
        ("float32", "nn", tiles(16, 2, 80, threads=3, SLABS=2)),
        ("float64", "nt", tiles(8, 6, 16, threads=2)),
        ("float64", "tn", tiles(2, 4, 6)),
    ],
    ids=str,
)
def test_packed_agrees_with_float64(compiled: Build, dtype: str, layout: str, config: dict) -> None:
    for m, n, k in (*SHAPES, (2, 200, 83), (150, 11, 41)):
        each = problem(m, n, k, layout, dtype)
        check(compiled(KERNELS["packed"], each, Config(config)), each)
        assert stays_inside(compiled(KERNELS["packed"], each, Config(config)), each), str(each)


def innermost_loops(assembly: str) -> list[list[str]]:
    """Loops of multiply-adds that hold no other jump, as lines of x86 assembly."""
    lines, places, found = assembly.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            places[label[1]] = number
        jump = re.search(r"\tj\w+\s+(\.L\w+)", line)
        if jump and jump[1] in places:
            body = lines[places[jump[1]] : number]
            if "vfmadd" in "".join(body) and not any(re.search(r"\tj\w+\s", each) for each in body):
                found.append(body)
    return found


HOST = cpu_info()
#: Tiles (rows, vectors of a row) for the registers of this CPU: most that fit, and too many.
LARGE_TILES = {
    64: [(14, 2, False), (9, 3, False), (12, 3, True)],
    32: [(6, 2, False), (4, 3, False), (8, 3, True)],
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mr", "vectors", "spills"), LARGE_TILES.get(HOST.vector_bytes, []))
def test_sums_stay_in_registers_where_the_constraint_says_so(
    compiled: Build, mr: int, vectors: int, spills: bool
) -> None:
    width = HOST.vector_bytes // 4
    config = Config(tiles(width, mr, vectors * width))
    (rule,) = [each for each in KERNELS["packed"].constraints if "spill" in each.sentence]
    assert bool(rule.rule(problem(9, 9, 9), HOST, config)) is not spills
    run = compiled(KERNELS["packed"], problem(9, 9, 9), config)
    run(*(np.ones((9, 9), np.float32) for _ in range(3)), 9, 9, 9)
    (assembly,) = sys.modules[run.__module__].multiply_block.inspect_asm().values()
    loops = innermost_loops(assembly)
    assert loops
    assert any("(%rsp" in line for loop in loops for line in loop) is spills


def near(width: int, mr: int, nr: int, **others: object) -> dict:
    """A config of `direct` that cuts K into parts."""
    flags = {"KC": 40, "PACK_A": False, "PACK_B": False, "STREAM": False}
    rest = {"UNROLL": 1, "PREFETCH": 0, "THREADS": 1, "SPLIT": "rows"}
    return {"WIDTH": width, "MR": mr, "NR": nr} | flags | rest | others


@pytest.mark.parametrize(
    ("dtype", "layout", "config"),
    [
        ("float32", "nn", near(16, 8, 48, PREFETCH=1, UNROLL=2)),
        ("float32", "nt", near(8, 6, 16, KC=512)),
        ("float32", "tn", near(16, 6, 16, STREAM=True, PACK_B=True)),
        ("float32", "nn", near(4, 3, 8, PACK_A=True, THREADS=3, SPLIT="rows")),
        ("float64", "tt", near(8, 4, 16, THREADS=4, SPLIT="both")),
        ("float64", "nn", near(2, 4, 4, STREAM=True, KC=512)),
    ],
    ids=str,
)
def test_direct_agrees_with_float64(compiled: Build, dtype: str, layout: str, config: dict) -> None:
    for m, n, k in (*SHAPES, (2, 200, 83), (150, 11, 41), (32, 48, 17)):
        each = problem(m, n, k, layout, dtype)
        check(compiled(KERNELS["direct"], each, Config(config)), each)
        assert stays_inside(compiled(KERNELS["direct"], each, Config(config)), each), str(each)


def test_memory_for_packing_is_kept_until_the_end(compiled: Build) -> None:
    # So much that it would go back to the system, and whoever touches it then dies.
    tall = problem(9000, 16, 64)
    assert stays_inside(
        compiled(KERNELS["direct"], tall, Config(near(8, 6, 8, PACK_A=True, PACK_B=True))), tall
    )


@pytest.mark.parametrize(
    ("name", "config"),
    [("naive", {"THREADS": 2}), ("blocked", {"BLOCK": 32, "TRANSPOSE_B": True, "THREADS": 2})],
)
def test_threads_share_the_work_and_are_put_back(compiled: Build, name: str, config: dict) -> None:
    import numba

    before = numba.get_num_threads()
    for m, n, k in SHAPES:
        each = problem(m, n, k, "tn")
        check(compiled(KERNELS[name], each, Config(config)), each)
    assert numba.get_num_threads() == before


def sampled(kernel: Kernel, count: int) -> tuple[Config, list[Config]]:
    """Random combinations of a kernel's values: as one config of arrays, and one by one."""
    random = np.random.default_rng(3)
    columns = {each.name: random.choice(each.values, size=count) for each in kernel.parameters}
    rows = [Config({key: column[i].item() for key, column in columns.items()}) for i in range(count)]
    return Config(columns), rows


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_each_constraint_rejects_something_and_the_default_is_legal(name: str) -> None:
    kernel = KERNELS[name]
    columns, _ = sampled(kernel, 2000)
    usual, thin = problem(1024, 1024, 1024), problem(1, 9, 9, "tt")
    half = CATALOGUE.operation("gemm").problem({"m": 9, "n": 9, "k": 9}, "float16")
    for constraint in kernel.constraints:
        verdicts = [np.atleast_1d(constraint.rule(p, SMALL, columns)) for p in (thin, half, usual)]
        assert {bool(each) for verdict in verdicts for each in verdict} == {True, False}, constraint.sentence
    default = kernel.default_config()
    assert default is not None
    broken = [each.sentence for each in kernel.constraints if not each.rule(usual, SMALL, default)]
    assert not broken


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_constraints_agree_on_scalars_and_arrays(name: str) -> None:
    kernel, usual = KERNELS[name], problem(300, 20, 1000)
    columns, rows = sampled(kernel, 50)
    for constraint in kernel.constraints:
        at_once = np.broadcast_to(constraint.rule(usual, SMALL, columns), 50)
        assert [bool(constraint.rule(usual, SMALL, row)) for row in rows] == at_once.tolist()


@pytest.mark.parametrize("name", ["packed", "direct"])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_width_of_vectors_has_a_first_config(name: str, vector_bytes: int, dtype: str) -> None:
    device = replace(SMALL, vector_bytes=vector_bytes)
    kernel = KERNELS[name]
    for each in (problem(1024, 1024, 1024, dtype=dtype), problem(600, 600, 600, dtype=dtype)):
        assert any(
            all(constraint.rule(each, device, config) for constraint in kernel.constraints)
            for config in kernel.first_configs()
        )


@pytest.mark.parametrize("threads", [1, 2])
def test_the_example_agrees_with_float64(compiled: Build, threads: int) -> None:
    example = from_file(Path(__file__).parents[2] / "examples" / "distances.py")
    (kernel,) = example.kernels
    config = Config({"TILE": 32, "ROWS": 4, "THREADS": threads})
    for n, axes in ((1, 1), (5, 3), (67, 2), (128, 9)):
        each = example.operation("distances").problem({"n": n, "axes": axes})
        check(compiled(kernel, each, config), each)


LOAD = """
import importlib.util, sys
import numba
import numpy as np
numba.__version__ = sys.argv[2] or numba.__version__
spec = importlib.util.spec_from_file_location("rendered", sys.argv[1])
module = sys.modules["rendered"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
a = np.ones((3, 3), np.float32)
module.gemm(a, a, np.empty_like(a), 3, 3, 3)
code = "".join(module.gemm.inspect_asm().values())
print(sum(module.gemm.stats.cache_hits.values()), "zmm" in code, "ymm" in code)
"""


def loaded(path: Path, cpu: str = "", version: str = "") -> list[str]:
    """Imports a rendered kernel in a process of its own: hits in the cache, zmm in its code, ymm in it."""
    environment = dict(os.environ) | ({"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""} if cpu else {})
    command = [sys.executable, "-c", LOAD, path, version]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 CPUs")
def test_what_one_process_compiled_another_loads_on_an_equal_cpu(tmp_path: Path) -> None:
    path = tmp_path / "rendered.py"
    text = render(KERNELS["direct"], problem(3, 3, 3), Config(near(8, 6, 16))).text
    path.write_text(text, encoding="utf-8")
    assert "KC = 40" in text
    first, second = loaded(path), loaded(path)
    assert (first[0], second[0]) == ("0", "1")
    # One source: a CPU with narrower vectors gets code of its own, in its own registers.
    assert loaded(path, "haswell") == ["0", "False", "True"]
    assert loaded(path, "x86-64") == ["0", "False", "False"]
    # The CPUs' code lies side by side; another version of Numba, or another source, has none yet.
    assert loaded(path)[0] == "1"
    assert loaded(path, version="0.1")[0] == "0"
    path.write_text(text.replace("KC = 40", "KC = 41"), encoding="utf-8")
    assert loaded(path)[0] == "0"
