"""The emulated gemm as the catalogue has it: where it is legal, what falls back, one source that compiles."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.exported import champion, imported, nvcc_warnings
from fixtures.fake_gpu import H200

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Rendered, guarded, render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.errors import DeclarationError
from tuner.export import export

GEMM = builtin().operation("gemm")
(KERNEL,) = builtin().of("gemm", "cuda", ("emulated",))


def problem(m: int, n: int, k: int, precision: str = "emulated", layout: str = "nn") -> Problem:
    return GEMM.problem({"m": m, "n": n, "k": k}, layout=layout, precision=precision)


def legal(of: Problem, config: Config) -> bool:
    return config in Space.build(KERNEL.parameters, KERNEL.constraints, of, H200)


def first(of: Problem) -> Config:
    """The first of the kernel's own configs that is legal."""
    return next(config for config in KERNEL.first_configs() if legal(of, config))


def test_it_serves_the_emulated_precision_alone() -> None:
    usual = problem(256, 256, 256, "ieee")
    assert len(Space.build(KERNEL.parameters, KERNEL.constraints, usual, H200)) == 0
    assert KERNEL not in builtin().of("gemm", "cuda", precision="ieee")
    names = {kernel.name for kernel in builtin().of("gemm", "cuda", precision="emulated")}
    assert {"emulated", "warp_tiled"} <= names, "plain kernels compete, too"


@pytest.mark.parametrize("dims", [(8192, 8192, 8192), (3001, 3001, 3001), (512, 512, 32768), (64, 64, 128)])
def test_every_large_shape_has_a_start(dims: tuple[int, int, int]) -> None:
    of = problem(*dims)
    launch = KERNEL.launched(of, first(of))
    assert launch is not None
    assert [step.entry for step in launch.steps] == ["pack", "gemm", "fallback"]
    assert launch.workspace is not None
    firsts = [place for _, place in launch.workspace.regions]
    assert firsts == sorted(firsts)
    assert all(place % 128 == 0 for place in firsts)
    assert firsts[-1] < launch.workspace.bytes


@pytest.mark.parametrize(("dims", "early"), [((512, 512, 512), True), ((1024, 1024, 1024), False)])
def test_small_products_start_while_operands_are_packed(dims: tuple[int, int, int], early: bool) -> None:
    at = problem(*dims)
    config = next(each for each in KERNEL.first_configs() if KERNEL.allows(at, H200, each))
    launch = KERNEL.launch(at, config)
    assert [each.early for each in launch.steps] == [False, early]


def test_shallow_products_are_left_to_plain_kernels() -> None:
    assert len(Space.build(KERNEL.parameters, KERNEL.constraints, problem(512, 512, 127), H200)) == 0


def test_the_record_names_what_it_falls_back_to() -> None:
    aligned, odd = problem(512, 512, 512), problem(511, 511, 511)
    assert "double_sums BM=64" in KERNEL.falls_back_to(first(aligned))
    assert "VECTOR=4" in KERNEL.falls_back_to(first(aligned))
    assert "VECTOR=1" in KERNEL.falls_back_to(first(odd))


@pytest.mark.parametrize("dims", [(512, 512, 512), (511, 300, 777), (512, 512, 32768)])
def test_the_fallback_is_legal_wherever_the_kernel_is(dims: tuple[int, int, int]) -> None:
    of = problem(*dims)
    space = Space.build(KERNEL.parameters, KERNEL.constraints, of, H200)
    for config in [space[at] for at in range(0, len(space), max(1, len(space) // 50))]:
        plain = Config(KERNEL.fallback.config(config))
        assert KERNEL.fallback.kernel.allows(of, H200, plain), config


def test_a_recorded_fallback_is_used_again_where_it_is_legal() -> None:
    aligned, odd = problem(512, 512, 512), problem(511, 511, 511)
    (warp_tiled,) = builtin().of("gemm", "cuda", ("warp_tiled",))
    for shared in (1, 4):
        plain = Config({**warp_tiled.default_config(), "SPLIT_K": shared})
        told = " ".join(["warp_tiled", *(f"{name}={value}" for name, value in plain.items())])
        again = KERNEL.as_recorded(told, aligned, H200)
        assert again.falls_back_to(first(aligned)) == told
        assert (again.source_hash, again.launch_hash(aligned, first(aligned))) == (
            KERNEL.source_hash, KERNEL.launch_hash(aligned, first(aligned)),
        )  # fmt: skip
        elsewhere = KERNEL.as_recorded(told, odd, H200)
        assert elsewhere.falls_back_to(first(odd)) == KERNEL.falls_back_to(first(odd))
    for unknown in ("", "gone A=1", "warp_tiled BM=128", "warp_tiled BM=5"):
        assert KERNEL.as_recorded(unknown, aligned, H200) == KERNEL


def plain_of(**changes: int) -> tuple[dict, str]:
    """A config of warp_tiled, and the words for it."""
    (warp_tiled,) = builtin().of("gemm", "cuda", ("warp_tiled",))
    config = {**warp_tiled.default_config(), **changes}
    return config, " ".join(["warp_tiled", *(f"{name}={value}" for name, value in config.items())])


def test_an_export_has_the_fallback_of_its_record(tmp_path: Path) -> None:
    of = problem(512, 768, 1024)
    _, told = plain_of(BM=64, SPLIT_K=2)
    case = champion(KERNEL, of, dict(first(of)), versions={"fallback": told})
    (source,) = export(case, KERNEL, of, "source", tmp_path)
    text = source.read_text()
    assert f"Inputs that it does not take are computed by {told}" in text
    assert "cudaError_t fallbacks_matmul(unsigned& count)" in text
    (record,) = export(case, KERNEL, of, "json", tmp_path)
    assert json.loads(record.read_text())["fallback"] == told
    (module,) = export(case, KERNEL, of, "python", tmp_path)
    assert "def fallbacks():" in module.read_text()
    elsewhere = champion(
        KERNEL, problem(512, 766, 1024), dict(first(problem(512, 766, 1024))), versions={"fallback": told}
    )
    (source,) = export(elsewhere, KERNEL, problem(512, 766, 1024), "source", tmp_path)
    assert "are computed by double_sums" in source.read_text(), "its rows are not divisible by four"


def test_a_fallback_that_shares_k_has_memory_within_the_workspace() -> None:
    of = problem(512, 512, 32768)
    config = next(each for each in KERNEL.first_configs() if each["SPLIT_K"] == 16 and legal(of, each))
    assert legal(of, config)
    own, launch = KERNEL.launch(of, config), KERNEL.launched(of, config)
    plain = KERNEL.fallback.kernel.launch(of, Config(KERNEL.fallback.config(config)))
    places, before = dict(launch.workspace.regions), dict(own.workspace.regions)
    assert launch.steps[-1].arguments[-1] == "fallback"
    assert own.workspace.zeroed_bytes <= places["fallback"]
    assert places["fallback"] + plain.workspace.zeroed_bytes <= launch.workspace.zeroed_bytes
    assert places["fallback"] + plain.workspace.bytes <= places["packed_a"]
    shift = places["packed_a"] - before["packed_a"]
    assert shift % 256 == 0
    assert launch.workspace.bytes == own.workspace.bytes + shift
    assert all(places[name] - at in (0, shift) for name, at in before.items())


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_what_falls_back_computes_as_the_plain_kernel_does(layout: str) -> None:
    of = problem(512, 512, 512, layout=layout)
    plain = KERNEL.fallback.kernel
    text = render(plain, of, Config(KERNEL.fallback.config(first(of)))).text
    behind = render(KERNEL, of, first(of)).text.partition("namespace fallback_kernel {\n")[2]
    unguarded = behind.replace("fallback(const unsigned* __restrict__ asked, ", "gemm(", 1)
    unguarded = unguarded.replace("\n    if (!*asked) return;", "", 1).removesuffix(
        "\n}\nusing fallback_kernel::fallback;\n"
    )
    assert unguarded == text


def test_a_source_without_the_function_cannot_fall_back() -> None:
    with pytest.raises(
        DeclarationError, match=r"a fallback's source has an extern .* function 'gemm', found none"
    ):
        guarded("__global__ void gemm() {}", "gemm")


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_one_source_compiles(layout: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")
    from tuner.devices.cuda.nvrtc import compile_cubin

    of = problem(512, 512, 512, layout=layout)
    cubin, _ = compile_cubin(render(KERNEL, of, first(of)).text, "sm_90a")
    assert all(name in cubin for name in (b"pack", b"gemm", b"fallback"))


def test_the_report_is_of_the_step_that_does_the_work() -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")
    from tuner.devices.cuda.nvrtc import compile_cubin, read_report

    of = problem(1023, 1023, 1023)
    rendered = render(KERNEL, of, first(of))
    cubin, log = compile_cubin(rendered.text, "sm_90a")
    of_all, report = read_report(log, cubin), read_report(log, cubin, rendered.entry)
    assert rendered.launch is not None
    assert report.registers * rendered.launch.block[0] <= H200.registers_per_block
    assert of_all.registers > report.registers, "the plain kernel behind has fewer threads, with more registers"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("epilogue", ["", "beta+bias-col+gelu+residual"])
def test_nvcc_compiles_the_exported_source_without_a_warning(epilogue: str, tmp_path: Path) -> None:
    of = replace(problem(512, 512, 512), epilogue=epilogue)
    (path,) = export(champion(KERNEL, of, dict(first(of))), KERNEL, of, "source", tmp_path)
    assert "Inputs that it does not take are computed by double_sums" in path.read_text()
    assert nvcc_warnings(path) == []


def test_the_exported_module_is_compiled_for_the_one_architecture(tmp_path: Path) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras")
    of = problem(512, 512, 512)
    (path,) = export(champion(KERNEL, of, dict(first(of))), KERNEL, of, "python", tmp_path)
    loaded: list[bytes] = []

    class RawModule:
        def __init__(self, path: str) -> None:
            self.path = path

        def compile(self) -> None:
            loaded.append(Path(self.path).read_bytes())

    module = imported(path)
    module.cupy = SimpleNamespace(RawModule=RawModule)
    module._module(0)
    assert nvrtc is not None
    assert b"fallback" in loaded[0]


def test_packing_one_operand_hides_the_other_and_a_packed_one_is_not_packed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launching = pytest.importorskip("tuner.devices.cuda.launching", reason="needs CuPy")
    of = problem(512, 512, 512)
    launch = KERNEL.launched(of, first(of))
    assert launch is not None
    (packing,) = [each for each in launch.packings if each.tensor == "b"]
    launched: list[tuple] = []
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8, funcSetAttribute=lambda *_: None
    )
    monkeypatch.setattr(launching, "driver", driver)
    monkeypatch.setattr(
        launching, "workspace", lambda wanted: SimpleNamespace(data=SimpleNamespace(ptr=1 << 20))
    )
    monkeypatch.setattr(launching, "counter", lambda device: SimpleNamespace(data=SimpleNamespace(ptr=7)))
    monkeypatch.setattr(launching.runtime, "getDevice", lambda: 0)
    module = SimpleNamespace(get_function=lambda name: Function(name, launched))
    rendered = Rendered("", "gemm", "cuda", launch)
    scalars = tuple(scalar.name for scalar in of.scalars)
    prepared = launching.PreparedRun(rendered, module, of, packing, alone=True)
    prepared(("a", "b", "c"), scalars, None, ("memory",))
    ((name, given),) = launched
    assert (name, given[:4]) == ("pack", (0, "b", 0, "memory"))
    assert given[4] == 0, "it counts nothing"
    launched.clear()
    launching.PreparedRun(rendered, module, of, packing)(("a", "b", "c"), scalars, None, ("memory",))
    assert [name for name, _ in launched] == ["pack", "gemm", "fallback"]
    region = dict(zip([name for name, _ in launch.workspace.regions], launched_regions(launch), strict=True))
    assert launched[0][1][:5] == ("a", 0, region["packed_a"], "memory", 7)
    assert launched[1][1][:3] == (region["packed_a"], "memory", "c")
    assert launched[2][1][:4] == (region["verdict"], "a", "b", "c")


def launched_regions(launch: Launch) -> list[int]:
    """Where the parts of a workspace lie that begins at 1 << 20."""
    assert launch.workspace is not None
    return [(1 << 20) + first for _, first in launch.workspace.regions]


class Function:
    """Stands for CuPy's: notes what it is given."""

    ptr = 0

    def __init__(self, name: str, launched: list[tuple]) -> None:
        self.name, self.launched = name, launched

    def __call__(self, grid: object, block: object, given: tuple, shared: int, stream: object) -> None:
        self.launched.append((self.name, given))
