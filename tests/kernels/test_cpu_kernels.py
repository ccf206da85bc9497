"""Every CPU kernel: results against float64 on edge shapes in all layouts, and the code that it becomes."""

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from fences import Build, check, stays_inside
from sampling import edge_problems, kernels, usual_problem

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cpu.kind import cpu_info

CATALOGUE = builtin()
#: With every dtype that the kernels can do.
GEMM = replace(CATALOGUE.operation("gemm"), dtypes=("float32", "float64"))
KERNELS = {kernel.name: kernel for kernel in CATALOGUE.of("gemm", "cpu")}
FOUR_CORES = DeviceInfo(name="small", kind="cpu", cores=4, vector_bytes=64, l1_bytes=32 << 10, l2_bytes=1 << 25)
SHAPES = (
    (1, 1, 1), (1, 37, 5), (37, 1, 70), (3, 5, 1), (65, 33, 129), (17, 100, 64), (64, 64, 64), (2, 200, 83),
    (150, 11, 41), (32, 48, 17),
)  # fmt: skip


def problem(m: int, n: int, k: int, layout: str = "nn", dtype: str = "float32") -> Problem:
    return GEMM.problem({"m": m, "n": n, "k": k}, dtype, layout)


def tiles(width: int, mr: int, nr: int, threads: int = 1, **others: object) -> dict:
    """A config of `packed` with blocks so small that small shapes have many of them, and edges everywhere."""
    blocks = {"WIDTH": width, "MR": mr, "NR": nr, "MC": 2 * mr, "KC": 40, "NC": 2 * nr}
    return blocks | {"UNROLL": 2, "PREFETCH": 0, "THREADS": threads, "SHARE": "B", "SLABS": 1} | others


def near(width: int, mr: int, nr: int, **others: object) -> dict:
    """A config of `direct` that cuts K into parts."""
    flags = {"KC": 40, "PACK_A": False, "PACK_B": False, "STREAM": False}
    rest = {"UNROLL": 1, "PREFETCH": 0, "THREADS": 1, "SPLIT": "rows"}
    return {"WIDTH": width, "MR": mr, "NR": nr} | flags | rest | others


#: Kernel, dtype, layouts, config: few, as each compiles for seconds; between them every branch of a kernel.
GEMMS = [
    ("naive", "float32", "nn nt tn tt", {"THREADS": 2}),
    ("blocked", "float32", "nn tt", {"BLOCK": 8, "TRANSPOSE_B": False, "THREADS": 1}),
    ("blocked", "float32", "nt tn", {"BLOCK": 32, "TRANSPOSE_B": True, "THREADS": 2}),
    ("packed", "float32", "nt", tiles(16, 14, 32, UNROLL=4, PREFETCH=8)),
    ("packed", "float32", "tt", tiles(8, 4, 24, threads=4, SHARE="both", SLABS=2)),
    ("packed", "float32", "nn", tiles(16, 2, 48, threads=3, SLABS=2)),
    ("packed", "float64", "tn", tiles(2, 4, 6)),
    ("direct", "float32", "nn", near(16, 8, 32, PREFETCH=1, UNROLL=2)),
    ("direct", "float32", "nt", near(4, 3, 8, PACK_A=True, THREADS=3)),
    ("direct", "float32", "tn", near(16, 6, 16, STREAM=True, PACK_B=True, KC=512)),
    ("direct", "float64", "tt", near(8, 4, 16, THREADS=4, SPLIT="both")),
]


@pytest.mark.parametrize(("name", "dtype", "layouts", "config"), GEMMS, ids=str)
def test_products_are_float64s(name: str, dtype: str, layouts: str, config: dict, compiled: Build) -> None:
    before = numba.get_num_threads()
    for layout in layouts.split():
        for shape in SHAPES:
            of = problem(*shape, layout, dtype)
            run = compiled(KERNELS[name], of, Config(config))
            check(run, of)
            assert name not in ("packed", "direct") or stays_inside(run, of), str(of)
    assert numba.get_num_threads() == before


def test_memory_for_packing_is_kept_until_the_end(compiled: Build) -> None:
    # So much that it would go back to the system, and whoever touches it then dies.
    tall = problem(9000, 16, 64)
    config = Config(near(4, 3, 8, PACK_A=True, THREADS=3))
    assert stays_inside(compiled(KERNELS["direct"], tall, config), tall)


#: Operation and kernel -> configs; each takes the dtypes in turn, and two of several layouts.
OTHERS = {
    ("bmm", "stacked"): [
        near(16, 8, 32, PREFETCH=1, UNROLL=2, CHUNK=2, THREADS=3),
        near(2, 4, 6, PACK_A=True, PACK_B=True, CHUNK=1, THREADS=2),
        near(8, 6, 16, STREAM=True, KC=512, CHUNK=16),
    ],
    ("grouped", "stacked"): [
        {"WIDTH": 16, "MR": 8, "NR": 32, "KC": 64, "PACK_B": False, "UNROLL": 2, "ROWS": 8, "THREADS": 1},
        {"WIDTH": 4, "MR": 6, "NR": 8, "KC": 64, "PACK_B": True, "UNROLL": 1, "ROWS": 32, "THREADS": 3},
    ],
    ("gemm", "vectorised"): [{"WIDTH": 4, "THREADS": 3}, {"WIDTH": 32, "THREADS": 1}],
    ("gemv", "blocked"): [{"BLOCK": 16, "AT_ONCE": 2, "THREADS": 2}, {"BLOCK": 32, "AT_ONCE": 1, "THREADS": 1}],
    ("gemv", "streaming"): [
        {"WIDTH": 16, "AT_ONCE": 4, "UNROLL": 2, "BLOCK": 16, "PARTS": 1, "PREFETCH": 512, "THREADS": 1},
        {"WIDTH": 2, "AT_ONCE": 2, "UNROLL": 2, "BLOCK": 32, "PARTS": 4, "PREFETCH": 0, "THREADS": 3},
    ],
    ("read", "read"): [{"THREADS": 2}], ("transpose", "naive"): [{"THREADS": 1}],
    ("copy", "copy"): [{"STREAM": True, "THREADS": 2}, {"STREAM": False, "THREADS": 3}],
    ("multiply_add", "multiply_add"): [{"LANES": 64, "THREADS": 2}],
    ("transpose", "blocked"): [{"BLOCK": 16, "THREADS": 2}], ("gemv", "naive"): [{"THREADS": 2}],
    ("transpose", "micro_tiles"): [
        {"WIDTH": 4, "ROWS": 16, "COLUMNS": 32, "STREAM": False, "PREFETCH": 0, "THREADS": 3},
        {"WIDTH": 16, "ROWS": 16, "COLUMNS": 16, "STREAM": True, "PREFETCH": 32, "THREADS": 2},
    ],
    ("distances", "distances"): [{"TILE": 32, "ROWS": 4, "THREADS": 2}],
}  # fmt: skip
CASES = {(operation.name, kernel.name): (operation, kernel) for operation, kernel in kernels("cpu")}


@pytest.mark.parametrize(
    ("key", "number"), [(key, number) for key in OTHERS if key in CASES for number in range(len(OTHERS[key]))]
)
def test_other_kernels_agree_with_float64(key: tuple[str, str], number: int, compiled: Build) -> None:
    (operation, kernel), config = CASES[key], Config(OTHERS[key][number])
    dtype, layouts = operation.dtypes[number % len(operation.dtypes)], operation.layouts
    for layout in layouts if len(layouts) <= 2 else layouts[number % 2 :: len(layouts) // 2]:
        usual = usual_problem(operation, layout, dtype)
        problems = edge_problems(kernel, config, usual, count=12, seed=number, device=FOUR_CORES)
        problems.append(operation.problem(dict.fromkeys(operation.dims, 48), dtype, layout))
        run = compiled(kernel, usual, config)
        for place, problem in enumerate(problems):
            check(run, problem, shift=place % 4)


def test_a_kernel_that_goes_round_the_cache_is_refused_where_rows_are_not_aligned() -> None:
    operation, kernel = CASES["transpose", "micro_tiles"]
    (rule,) = [rule for rule in kernel.constraints if "aligned" in rule.sentence]
    config = Config(OTHERS["transpose", "micro_tiles"][1])
    verdicts = [rule.rule(operation.problem({"m": m, "n": 64}), FOUR_CORES, config) for m in (64, 65)]
    assert verdicts == [True, False]


@pytest.mark.parametrize("name", ["packed", "direct"])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_width_of_vectors_has_a_first_config(name: str, vector_bytes: int, dtype: str) -> None:
    device, kernel = replace(FOUR_CORES, vector_bytes=vector_bytes, l2_bytes=1 << 20), KERNELS[name]
    for size in (1024, 600):
        of = problem(size, size, size, dtype=dtype)
        assert any(kernel.legal(of, device, config) for config in kernel.first_configs())


# ---- the code that they become


def innermost_loops(assembly: str) -> list[list[str]]:
    """Loops of multiply-adds that hold no other jump, as lines of x86 assembly."""
    lines, places, loops = assembly.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            places[label[1]] = number
        jump = re.search(r"\tj\w+\s+(\.L\w+)", line)
        if jump and jump[1] in places:
            body = lines[places[jump[1]] : number]
            if "vfmadd" in "".join(body) and not any(re.search(r"\tj\w+\s", each) for each in body):
                loops.append(body)
    return loops


HOST = cpu_info()
#: Tiles (rows, vectors of a row) for the registers of this CPU: most that fit, and too many.
LARGE_TILES = {64: [(14, 2, False), (12, 3, True)], 32: [(6, 2, False), (8, 3, True)]}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("mr", "vectors", "spills"), LARGE_TILES.get(HOST.vector_bytes, []))
def test_sums_stay_in_registers_as_the_rule_says(compiled: Build, mr: int, vectors: int, spills: bool) -> None:
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
print(sum(module.gemm.stats.cache_hits.values()))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 CPUs")
def test_what_one_process_compiled_another_loads_on_an_equal_cpu(tmp_path: Path) -> None:
    path = tmp_path / "rendered.py"
    path.write_text(render(KERNELS["direct"], problem(3, 3, 3), Config(near(4, 3, 8))).text, encoding="utf-8")

    def hits(cpu: str = "", version: str = "") -> str:
        """Functions that a process of its own loads rather than compiles."""
        environment = dict(os.environ) | ({"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""} if cpu else {})
        command = [sys.executable, "-c", LOAD, path, version]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()

    # Another CPU, or another version of Numba, has no code yet; the CPUs' code lies side by side.
    assert [hits(), hits(), hits("haswell"), hits(), hits(version="0.1")] == ["0", "1", "0", "1", "0"]


# --- other CPUs ----------------------------------------


ROOT = Path(__file__).resolve().parents[2]

#: Compiles and runs one config of every kernel of our own, as the CPU that the environment names would.
RUN = """
import json, sys
from fences import check
from products import kernel_of
from tuner.declare.catalogue import builtin
from tuner.devices.cpu.numba import load_module
from tuner.declare.kernel import render
from tuner.declare.space import Config

found = {}
for operation, name, layout, dtype, dims, config in json.loads(sys.argv[1]):
    problem = builtin().operation(operation).problem(dims, dtype, layout)
    entry = load_module(render(kernel_of(name, operation, "cpu"), problem, Config(config)))
    for _ in range(5):
        check(entry, problem)
    functions = [entry] if hasattr(entry, "inspect_asm") else entry.__globals__.values()
    known = [each.inspect_asm() for each in functions if getattr(each, "signatures", None)]
    code = "".join(text for each in known for text in each.values())
    found[name] = [register in code for register in ("zmm", "ymm", "vfmadd")]
print(json.dumps(found))
"""


def cases(lanes: int, dtype: str) -> list[tuple[str, str, str, str, dict[str, int], dict[str, object]]]:
    """One config of each kernel for vectors of so many elements, with edges in every direction."""
    tile = {"WIDTH": lanes, "MR": 6, "NR": 2 * lanes, "UNROLL": 2, "PREFETCH": 0, "THREADS": 16}
    shared = {"MC": 24, "KC": 64, "NC": 256, "SHARE": "both", "SLABS": 4}
    near = {"KC": 64, "PACK_A": True, "PACK_B": False, "STREAM": False, "SPLIT": "both"}
    rows = {"WIDTH": lanes, "AT_ONCE": 4, "UNROLL": 2, "BLOCK": 64, "PARTS": 4, "PREFETCH": 0, "THREADS": 16}
    turned = {
        "WIDTH": lanes, "ROWS": 2 * lanes, "COLUMNS": 2 * lanes, "STREAM": False, "PREFETCH": 0, "THREADS": 16
    }  # fmt: skip
    return [
        ("gemm", "packed", "nn", dtype, {"m": 203, "n": 301, "k": 131}, tile | shared),
        ("gemm", "direct", "tn", dtype, {"m": 203, "n": 301, "k": 131}, tile | near),
        ("gemv", "streaming", "t", dtype, {"m": 203, "n": 301}, rows),
        ("transpose", "micro_tiles", "", dtype, {"m": 203, "n": 301}, turned),
    ]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 CPUs")
@pytest.mark.parametrize(("cpu", "lanes", "dtype", "registers"), [
    ("haswell", 8, "float32", [False, True, True]),  # 256 bits, fused
    ("x86-64", 2, "float64", [False, False, False]),  # 128 bits, multiplied and added one after the other
])  # fmt: skip
def test_every_kernel_is_right_with_narrower_vectors_and_more_threads_than_cores(
    tmp_path: Path, cpu: str, lanes: int, dtype: str, registers: list[bool]
) -> None:
    environment = os.environ | {
        "NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": "", "TUNER_CACHE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "kernels"))),
    }  # fmt: skip
    command = [sys.executable, "-c", RUN, json.dumps(cases(lanes, dtype))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    assert found.keys() == {"packed", "direct", "streaming", "micro_tiles"}
    for name, used in found.items():
        # A transpose multiplies nothing.
        assert used == [*registers[:2], registers[2] and name != "micro_tiles"], name
