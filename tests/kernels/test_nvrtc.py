"""Every CUDA kernel compiles for the architectures that we support. Needs NVRTC, and neither GPU nor driver."""

import re
import runpy
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from products import gemm, kernel_of
from sampling import USUAL, covering, every_kind, is_first_kind, is_legal, is_right, name_of, space

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cuda.nvrtc import compile_cubin, read_report

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
#: For this one, defaults spill no registers.
IN_REGISTERS = "sm_90a"


def spilled(kernel: Kernel, problem: Problem, config: Config, architecture: str) -> int:
    """Bytes that the machine code spills, of those kernels of the source that spill most."""
    job = render(kernel, problem, config)
    cubin, log = compile_cubin(job.text, architecture, job.options)
    assert cubin.startswith(b"\x7fELF")
    assert not re.search(r"C7508|C751[0-8]", log), log  # registers not set aside; products one by one
    report = read_report(log, cubin)
    assert report.registers > 0
    return report.spill_bytes


#: Which configs are compiled for an architecture: the default of a kernel's first kind of problem, and of each
#: kind for `IN_REGISTERS`; and of every other kind one drawn from the space, for one architecture in turn.
CASES = [
    (usual, kernel, architecture, configs)
    for number, (usual, kernel) in enumerate(every_kind("cuda"))
    for place, architecture in enumerate(ARCHITECTURES)
    if (
        configs := ("default",) * (is_first_kind(usual) or architecture == IN_REGISTERS)
        + ("drawn",) * ((2 * place - number) % (2 * len(ARCHITECTURES)) == 0)
    )
]


@pytest.mark.parametrize(("usual", "kernel", "architecture", "configs"), CASES, ids=name_of)
def test_compiles(usual: Problem, kernel: Kernel, architecture: str, configs: tuple[str, ...]) -> None:
    if "drawn" in configs:
        (drawn, *_) = covering(space(kernel, usual), seed=zlib.crc32(f"{usual} {architecture}".encode()))
        spilled(kernel, usual, drawn, architecture)
    if "default" in configs:
        known = [config for config in kernel.first_configs() if is_legal(kernel, usual, config)]
        bytes_ = spilled(kernel, usual, known[0] if known else space(kernel, usual)[0], architecture)
        assert architecture != IN_REGISTERS or bytes_ == 0, "the default keeps everything in registers"


#: Operation, dtype, layout and epilogue of products that tensor maps fetch.
FETCHED = [
    ("bmm", "bfloat16", "tn-b", ""), ("bmm", "float8_e4m3fn", "nt", "scale-block"),
    ("grouped", "float16", "nn-hot", ""), ("grouped", "float8_e4m3fn", "nt-decode", "scale-line+to-float32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "layout", "epilogue"), FETCHED)
def test_products_of_stacks_and_groups_keep_sums_in_registers(
    name: str, dtype: str, layout: str, epilogue: str
) -> None:
    problem = builtin().operation(name).problem(USUAL[name], dtype, layout, epilogue=epilogue)
    (kernel,) = builtin().of(name, "cuda", ("wgmma",))
    configs = [config for config in kernel.first_configs() if is_legal(kernel, problem, config)]
    assert [spilled(kernel, problem, config, "sm_90a") for config in (configs[0], configs[-1])] == [0, 0]


ALL, SOME = "alpha+beta+bias-col+gelu+residual", "bias-col+gelu-tanh"
#: What tells a config of emulated from its default.
PACKED = {"CHUNK": 64, "STAGES": 5, "CLUSTER": 2, "GIVEN": 232, "BLOCKS": 132, "PLAIN": "any"}
#: Kernels for one precision or architecture, and epilogues: dtype, layout and epilogue; architecture;
#: what differs from the default.
SPECIAL: list[tuple[str, tuple[str, str, str], str, Mapping[str, Any]]] = [
    ("wgmma_tma", ("bfloat16", "nn", ""), "sm_90a", {"LEAD": 3}),
    ("wgmma_tma", ("float16", "nt", ""), "sm_90a", {"STORE": "registers", "CLUSTER_M": 1, "CLUSTER_N": 2}),
    ("wgmma_tma", ("bfloat16", "tn", ""), "sm_90a",
     {"TEAM": "apart", "ROWS": 2, "WIDTH": 128, "ORDER": "hilbert"}),
    ("wgmma_tma", ("float16", "tt", ""), "sm_90a",
     {"CONSUMERS": 3, "WIDTH": 64, "GIVEN": 160, "SPLIT_K": 4, "CLUSTER_N": 2}),
    ("wgmma_tma", ("bfloat16", "nn", ""), "sm_90a", {
        "CONSUMERS": 1, "WIDTH": 32, "STAGES": 16, "GIVEN": 0, "CLUSTER_M": 1, "CLUSTER_N": 2, "BLOCKS": 0}),
    ("wgmma_tma", ("float16", "nn", ""), "sm_90a",
     {"WIDTH": 160, "CLUSTER_M": 4, "CLUSTER_N": 2, "BLOCKS": 0}),
    ("wgmma_tma", ("float16", "tn", ""), "sm_90a", {
        "SWAP": 1, "CLUSTER_M": 1, "BLOCKS": 0, "SPLIT_K": 16, "ADD": "after", "STORE": "registers"}),
    ("wgmma_tma", ("bfloat16", "nn", SOME), "sm_90a", {"WIDTH": 128, "STAGES": 6}),
    ("wgmma_tma", ("float16", "nn", ALL), "sm_90a", {"STORE": "registers", "WIDTH": 128, "STAGES": 6}),
    ("emulated", ("", "nn", ""), "sm_90a", {"WIDTH": 192}),
    ("emulated", ("", "nn", ALL), "sm_90a", {"WIDTH": 128, "STAGES": 6}),
    ("emulated", ("", "nt", ""), "sm_90a", {"WIDTH": 128, "PARTS": 2, "STAGES": 4, "SPLIT_K": 4}),
    ("emulated", ("", "tn", ""), "sm_90a", {"WIDTH": 176, "CLUSTER": 1, "TURNS": "early", "ORDER": "snake"}),
    ("emulated", ("", "tt", ""), "sm_90a", {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1, "TURNS": "taken"}),
    ("emulated", ("", "nn", ""), "sm_90a",
     {"WIDTH": 128, "STAGES": 6, "PROMOTION": "compensated", "SPLIT_K": 16}),
    ("emulated", ("", "nt", ""), "sm_90a",
     {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1, "CHUNK": 32, "PROMOTION": "compensated"}),
    ("emulated", ("", "tn", ""), "sm_90a", {"CONSUMERS": 1, "WIDTH": 96, "GIVEN": 0}),
    *(("double_sums", ("", "nn", ""), at, {"VECTOR": vector, "SPLIT_K": shares})
      for at in ("sm_80", "sm_90") for vector, shares in ((4, 1), (1, 8))),
    *((name, ("", "nn", SOME), "sm_80", {})
      for name in ("tiled", "register_tiled", "warp_tiled", "multivector")),
    ("half_tiled", ("bfloat16", "nn", SOME), "sm_80", {}),
]  # fmt: skip
#: In bytes. Those of the first two are of the producer's one thread, which waits most of the time.
SPILLED_MOST = {"wgmma_tma": 96, "emulated": 128, "register_tiled": 8}


@pytest.mark.parametrize(("name", "kind", "architecture", "changes"), SPECIAL)
def test_sums_stay_in_registers_in_every_way_of_a_kernel_and_with_epilogues(
    name: str, kind: tuple[str, str, str], architecture: str, changes: Mapping[str, Any]
) -> None:
    kernel, (dtype, layout, epilogue) = kernel_of(name), kind
    emulated = "emulated" if name in ("emulated", "double_sums") else ""
    of = gemm(*(1023 if name == "emulated" else 4096,) * 3, layout, dtype, emulated, epilogue)
    config = Config({**kernel.default_config(), **(PACKED if name == "emulated" else {}), **changes})
    assert is_right(kernel, of, config)
    assert spilled(kernel, of, config, architecture) <= SPILLED_MOST.get(name, 0)


@pytest.mark.parametrize(("layout", "dtype", "tt"), [
    ("nn", "float16", 8), ("nt", "float16", 8), ("tn", "bfloat16", 4), ("tt", "bfloat16", 1),
])  # fmt: skip
def test_starts_of_16_bits_are_few_and_spill_no_registers(layout: str, dtype: str, tt: int) -> None:
    kernel, problem = kernel_of("multivector"), gemm(tt, 8192, 8192, layout, dtype)
    found = [each for each in kernel.first_configs() if is_legal(kernel, problem, each)]
    assert 1 <= len(found) <= 8
    for config in found:
        assert config.VECTOR == 8
        assert spilled(kernel, problem, config, IN_REGISTERS) == 0, config


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
