"""The CPU kernels with narrower vectors and more threads than cores, compiled in processes of their own."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

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
