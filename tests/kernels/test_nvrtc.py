"""Every CUDA kernel compiles for the architectures that we support. Needs NVRTC, and neither GPU nor driver."""

from __future__ import annotations

import importlib.util
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sampling import covering, every_kind, is_first_kind, is_legal, name_of, space

from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cuda.nvrtc import compile_cubin, read_report

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
#: For this one, defaults spill no registers.
IN_REGISTERS = "sm_90a"


def first_config(usual: Problem, kernel: Kernel) -> Config:
    """What a person would try first and is legal; any legal one where no such was declared."""
    known = [config for config in kernel.first_configs() if is_legal(kernel, usual, config)]
    return known[0] if known else space(kernel, usual)[0]


#: Every architecture for the first kind of problem, one in turn for each of the others.
CASES = [
    (usual, kernel, architecture)
    for number, (usual, kernel) in enumerate(every_kind("cuda"))
    for place, architecture in enumerate(ARCHITECTURES)
    if is_first_kind(usual) or (place - number) % len(ARCHITECTURES) == 0
]


@pytest.mark.parametrize(("usual", "kernel", "architecture"), CASES, ids=name_of)
def test_compiles(usual: Problem, kernel: Kernel, architecture: str) -> None:
    default = first_config(usual, kernel)
    drawn = covering(space(kernel, usual), seed=zlib.crc32(f"{usual} {architecture}".encode()))
    jobs = [render(kernel, usual, config) for config in (default, *drawn[:1])]
    spilled = []
    with ThreadPoolExecutor(2) as pool:
        for cubin, log in pool.map(lambda job: compile_cubin(job.text, architecture, job.options), jobs):
            assert cubin.startswith(b"\x7fELF")
            report = read_report(log, cubin)
            assert report.registers > 0
            spilled.append(report.spill_bytes)
    assert architecture != IN_REGISTERS or spilled[0] == 0, "the default keeps everything in registers"


#: The kinds of which `test_compiles` does not compile the default for the architecture in question.
OTHERS = [
    (usual, kernel)
    for usual, kernel in every_kind("cuda")
    if not any(each[0] == usual and each[1] is kernel and each[2] == IN_REGISTERS for each in CASES)
]


@pytest.mark.parametrize(("usual", "kernel"), OTHERS, ids=name_of)
def test_defaults_keep_everything_in_registers(usual: Problem, kernel: Kernel) -> None:
    rendered = render(kernel, usual, first_config(usual, kernel))
    cubin, log = compile_cubin(rendered.text, IN_REGISTERS, rendered.options)
    assert read_report(log, cubin).spill_bytes == 0


NAMED = """
struct {name} {{
    static constexpr int FACTOR = {factor};
    __device__ static void put(const int& value, int* to) {{ *to = value; }}
}};
extern "C" __global__ void probe(int* to) {{ {name}::put({name}::FACTOR, to); }}
"""


def test_a_cubin_without_names_tells_code_and_not_what_structs_are_called() -> None:
    path = Path(__file__).resolve().parents[2] / "scripts" / "equivalents.py"
    script = importlib.util.spec_from_file_location("equivalents", path)
    assert script is not None
    assert script.loader is not None
    equivalents = importlib.util.module_from_spec(script)
    script.loader.exec_module(equivalents)

    def code(name: str, factor: int) -> bytes:
        cubin, _ = compile_cubin(NAMED.format(name=name, factor=factor), "sm_90a", ())
        found: bytes = equivalents.without_names(cubin)
        return found

    assert code("First", 3) == code("AnotherName", 3)
    assert code("First", 3) != code("First", 4)
