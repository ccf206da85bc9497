"""Every CUDA kernel compiles for the architectures that we support. Needs NVRTC, and neither GPU nor driver."""

from __future__ import annotations

import runpy
import zlib
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


#: Every architecture for the first kind of problem, one in turn for each of the others, beside `IN_REGISTERS`.
CASES = [
    (usual, kernel, architecture)
    for number, (usual, kernel) in enumerate(every_kind("cuda"))
    for place, architecture in enumerate(ARCHITECTURES)
    if is_first_kind(usual) or architecture == IN_REGISTERS or (place - number) % len(ARCHITECTURES) == 0
]


@pytest.mark.parametrize(("usual", "kernel", "architecture"), CASES, ids=name_of)
def test_compiles(usual: Problem, kernel: Kernel, architecture: str) -> None:
    configs = [first_config(usual, kernel)]
    if is_first_kind(usual) or architecture != IN_REGISTERS:
        configs += covering(space(kernel, usual), seed=zlib.crc32(f"{usual} {architecture}".encode()))[:1]
    spilled = []
    for job in (render(kernel, usual, config) for config in configs):
        cubin, log = compile_cubin(job.text, architecture, job.options)
        assert cubin.startswith(b"\x7fELF")
        report = read_report(log, cubin)
        assert report.registers > 0
        spilled.append(report.spill_bytes)
    assert architecture != IN_REGISTERS or spilled[0] == 0, "the default keeps everything in registers"


NAMED = """
struct {name} {{
    static constexpr int FACTOR = {factor};
    __device__ static void put(const int& value, int* to) {{ *to = value; }}
}};
extern "C" __global__ void probe(int* to) {{ {name}::put({name}::FACTOR, to); }}
"""


def test_a_cubin_without_names_tells_code_and_not_what_structs_are_called() -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "equivalents.py"
    without_names = runpy.run_path(str(script))["without_names"]

    def code(name: str, factor: int) -> bytes:
        cubin, _ = compile_cubin(NAMED.format(name=name, factor=factor), "sm_90a", ())
        return bytes(without_names(cubin))

    assert code("First", 3) == code("AnotherName", 3)
    assert code("First", 3) != code("First", 4)
