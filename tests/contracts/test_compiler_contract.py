"""What every compiler does: fake, Numba and, where it is installed, NVRTC. None of them needs a GPU."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BOARD, TOY
from tuner.devices.fake.device import FakeCompiler

from tuner.declare import catalogue
from tuner.declare.kernel import Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cpu.numba import NumbaCompiler
from tuner.devices.cuda import nvrtc
from tuner.devices.detect import language_of
from tuner.devices.protocol import CompileFailed, Compiler

BROKEN_RULE = {"where": {"BROKEN": "1"}, "fault": "compile_failed"}
TARGET = {"fake": "cuda", "numba": "cpu", "nvrtc": "cuda", "cublaslt": "cpu"}


def toy(n: int = 1000) -> Problem:
    return catalogue.from_file(TOY).operation("toy").problem({"n": n})


def of_toy(kind: str, number: int = 0) -> Rendered:
    """The toy with one of its configs."""
    kernel = catalogue.from_file(TOY).of("toy", TARGET[kind])[0]
    configs = {
        "cuda": [{"BLOCK": 64, "ITEMS": 1, "ORDER": "blocked"}, {"BLOCK": 64, "ITEMS": 8, "ORDER": "striped"}],
        "cpu": [{"CHUNK": 64, "FUSED": True}, {"CHUNK": 128, "FUSED": False}],
    }[kernel.target]
    return render(kernel, toy(), Config(configs[number]))


@pytest.fixture(params=["fake", "numba", "nvrtc", "cublaslt"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "nvrtc":
        needs_nvrtc()
    return str(request.param)


@pytest.fixture
def compiler(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    if kind == "fake":
        path = tmp_path / "device.json"
        path.write_text(json.dumps({"info": BOARD, "rules": [BROKEN_RULE], "landscape_seed": 1}))
        yield FakeCompiler(str(path))
        return
    # A compiler that finds what an earlier run left shows nothing.
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    made: Any = language_of({"numba": "cpu", "nvrtc": "cuda"}.get(kind, kind)).compiler()
    yield made
    if kind == "nvrtc":
        made.close()


def test_it_compiles_and_reports(compiler: Compiler, kind: str) -> None:
    binary = compiler.compile(of_toy(kind), "sm_90a", toy())
    assert binary.report.binary_hash
    assert binary.report.compiler
    assert binary.report.spill_bytes == 0


def test_the_same_source_gives_the_same_machine_code_and_another_another(compiler: Compiler, kind: str) -> None:
    first, same, other = (compiler.compile(of_toy(kind, number), "sm_90a", toy()) for number in (0, 0, 1))
    assert first == same
    assert first.report.binary_hash != other.report.binary_hash


def test_a_source_that_is_wrong_is_refused_with_the_compilers_words(compiler: Compiler, kind: str) -> None:
    rendered = of_toy(kind)
    broken = replace(rendered, text=f"#define BROKEN 1\n#error no\n{rendered.text}\nreturn 1\n")
    with pytest.raises(CompileFailed, match=r"error|Error"):
        compiler.compile(broken, "sm_90a", toy())
    assert compiler.compile(rendered, "sm_90a", toy()).report.binary_hash


# --- NVRTC ----------------------------------------------------------------------------------------------------


def needs_nvrtc() -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")
    assert [nvrtc.target_architecture(each) for each in (89, 90)] == ["sm_89", "sm_90a"]


def test_spills_and_shared_memory_are_read_from_the_log() -> None:
    needs_nvrtc()
    text = """
    extern "C" __global__ void __launch_bounds__(1024, 2) hungry(float* x) {
        __shared__ float s[1000];
        float v[128];
        for (int i = 0; i < 128; ++i) v[i] = x[i * 1024 + threadIdx.x];
        s[threadIdx.x % 1000] = v[0];
        __syncthreads();
        for (int r = 0; r < 5; ++r)
            for (int i = 0; i < 128; ++i) v[i] = v[i] * v[(i + 37) % 128] + s[i];
        for (int i = 0; i < 128; ++i) x[i * 1024 + threadIdx.x] = v[i];
    }
    """
    cubin, log = nvrtc.compile_cubin(text, "sm_80")
    report = nvrtc.read_report(log, cubin)
    assert 0 < report.registers <= 32
    assert (report.spill_bytes > 100, report.shared_bytes) == (True, 4000)


@pytest.mark.parametrize(("head", "body"), [
    ("const float LARGEST = INFINITY, NONE = NAN;", "x[0] = LARGEST + NONE + M_PI + FLT_MAX + INT_MAX;"),
    ("#include <math.h>\n#include <cstdio>\n#include <cassert>", 'assert(n); printf("%f", sqrtf(x[0]));'),
    ("#include <cuda_runtime.h>\n#include <cstdint>", "uint32_t i = n; x[i] = std::max(x[0], 1.0f);"),
])  # fmt: skip
def test_cuda_text_has_what_nvcc_gives(head: str, body: str) -> None:
    needs_nvrtc()
    text = f'{head}\nextern "C" __global__ void own(float* x, int n) {{ {body} }}'
    assert nvrtc.compile_cubin(text, "sm_90a")[0].startswith(b"\x7fELF")


def test_a_header_that_is_missing_is_told_with_the_remedy() -> None:
    needs_nvrtc()
    told = r"open source file .vector.[\s\S]*without the host's headers.*CUDA_PATH"
    with pytest.raises(CompileFailed, match=told):
        nvrtc.compile_cubin("#include <vector>\n", "sm_90a")


def test_a_cubin_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_nvrtc()
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    first = nvrtc.NvrtcCompiler()
    binary = first.compile(of_toy("nvrtc"), "sm_80", toy())
    first.close()
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    second = nvrtc.NvrtcCompiler()
    assert second.compile(of_toy("nvrtc"), "sm_80", toy()) == binary
    fast = replace(of_toy("nvrtc"), options=("--use_fast_math",))
    for rendered, architecture in ((of_toy("nvrtc"), "sm_90a"), (fast, "sm_80")):
        with pytest.raises(pytest.fail.Exception, match="compiled again"):
            second.compile(rendered, architecture, toy())
    second.close()


# --- Numba ----------------------------------------------------------------------------------------------------


def test_what_numba_compiled_is_found_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    rendered = of_toy("numba")
    NumbaCompiler().compile(rendered, "", toy())
    files = list(tmp_path.rglob("*.nbc"))
    assert files
    NumbaCompiler().compile(rendered, "", toy())
    assert list(tmp_path.rglob("*.nbc")) == files


def test_compiling_runs_on_small_arrays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    text = "def toy(x, y, n):\n    if n > 100 or x.size != n:\n        raise ValueError(n)\n"
    rendered = replace(of_toy("numba"), text=text)
    assert NumbaCompiler().compile(rendered, "", toy(10**9)).code == b""


def test_a_missing_entry_is_told() -> None:
    with pytest.raises(CompileFailed, match=r"AttributeError: .* has no attribute 'toy'"):
        NumbaCompiler().compile(replace(of_toy("numba"), text="X = 1\n"), "", toy())
