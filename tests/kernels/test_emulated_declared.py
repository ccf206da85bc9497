"""The emulated gemm as the catalogue has it: where it is legal, what falls back, one source that compiles."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.exported import champion, nvcc_warnings
from fixtures.fake_gpu import H200
from products import gemm, kernel_of

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import guarded
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.errors import DeclarationError
from tuner.export import export
from tuner.results.measurement import KINDS_OF_INPUTS

KERNEL = kernel_of("emulated")


def problem(m: int, n: int, k: int, precision: str = "emulated", layout: str = "nn") -> Problem:
    return gemm(m, n, k, layout, precision=precision)


def first(of: Problem) -> Config:
    """The first of the kernel's own configs that is legal."""
    return next(config for config in KERNEL.first_configs() if KERNEL.legal(of, H200, config))


def test_it_serves_the_emulated_precision_alone_and_leaves_shallow_products_to_plain_kernels() -> None:
    for of in (problem(256, 256, 256, "ieee"), problem(512, 512, 127)):
        assert len(Space.build(KERNEL.parameters, KERNEL.constraints, of, H200)) == 0
    assert KERNEL not in builtin().of("gemm", "cuda", precision="ieee")
    names = {kernel.name for kernel in builtin().of("gemm", "cuda", precision="emulated")}
    assert {"emulated", "warp_tiled"} <= names, "plain kernels compete, too"


@pytest.mark.parametrize("dims", [(8192, 8192, 8192), (3001, 3001, 3001), (512, 512, 32768), (64, 64, 128)])
def test_every_large_shape_has_a_start(dims: tuple[int, int, int]) -> None:
    of = problem(*dims)
    launch = KERNEL.launched(of, first(of))
    assert [step.entry for step in launch.steps] == ["pack", "gemm", "fallback"]
    assert launch.steps[1].early == (dims == (64, 64, 128)), "small products start while operands are packed"
    firsts = [place for _, place in launch.workspace.regions]
    assert firsts == sorted(firsts)
    assert all(place % 128 == 0 for place in firsts)
    assert firsts[-1] < launch.workspace.bytes


@pytest.mark.parametrize("dims", [(512, 512, 512), (511, 300, 777), (512, 512, 32768)])
def test_the_fallback_is_legal_wherever_the_kernel_is(dims: tuple[int, int, int]) -> None:
    of = problem(*dims)
    space = Space.build(KERNEL.parameters, KERNEL.constraints, of, H200)
    for config in [space[at] for at in range(0, len(space), max(1, len(space) // 50))]:
        plain = Config(KERNEL.scope.fallback.config(config))
        assert KERNEL.scope.fallback.kernel.allows(of, H200, plain), config


def plain_of(**changes: int) -> str:
    """A config of warp_tiled in words."""
    return f"warp_tiled {Config({**kernel_of('warp_tiled').default_config(), **changes})}"


def test_a_recorded_fallback_is_used_again_where_it_is_legal() -> None:
    aligned, odd = problem(512, 512, 512), problem(511, 511, 511)
    for shared in (1, 4):
        words = plain_of(SPLIT_K=shared)
        again = KERNEL.as_recorded(words, aligned, H200)
        assert again.falls_back_to(first(aligned)) == words
        assert (again.source_hash, again.launch_hash(aligned, first(aligned))) == (
            KERNEL.source_hash, KERNEL.launch_hash(aligned, first(aligned)),
        )  # fmt: skip
        elsewhere = KERNEL.as_recorded(words, odd, H200)
        assert elsewhere.falls_back_to(first(odd)) == KERNEL.falls_back_to(first(odd))
    for unknown in ("", "gone A=1", "warp_tiled BM=128", "warp_tiled BM=5"):
        assert KERNEL.as_recorded(unknown, aligned, H200) == KERNEL


def test_an_export_has_the_fallback_of_its_record(tmp_path: Path) -> None:
    words = plain_of(BM=64, SPLIT_K=2)
    tested = {KINDS_OF_INPUTS: 9.0}
    # The rows of the second are not divisible by four; whether the third's keeps the promise is not known.
    for dims, circumstances, fallback in (
        ((512, 768, 1024), tested, words), ((512, 766, 1024), tested, "double_sums"),
        ((512, 768, 1024), {}, "double_sums"),
    ):  # fmt: skip
        of = problem(*dims)
        case = champion(KERNEL, of, dict(first(of)), versions={"fallback": words})
        measurement = replace(case.record.measurement, circumstances=circumstances)
        case = replace(case, record=replace(case.record, measurement=measurement))
        source, record, module = (
            export(case, KERNEL, of, form, tmp_path)[0].read_text() for form in ("source", "json", "python")
        )
        assert f"Inputs that it does not take are computed by {fallback}" in source
        assert "cudaError_t fallbacks_matmul(unsigned& count)" in source
        assert json.loads(record)["fallback"].startswith(fallback)
        assert "def fallbacks():" in module


def test_a_fallback_that_shares_k_has_memory_within_the_workspace() -> None:
    of = problem(512, 512, 32768)
    config = next(
        each for each in KERNEL.first_configs() if each["SPLIT_K"] == 16 and KERNEL.legal(of, H200, each)
    )
    own, launch = KERNEL.launch(of, config).workspace, KERNEL.launched(of, config)
    plain = KERNEL.scope.fallback.kernel.launch(of, Config(KERNEL.scope.fallback.config(config))).workspace
    place, after = (dict(launch.workspace.regions)[name] for name in ("fallback", "packed_a"))
    assert launch.steps[-1].arguments[-1] == "fallback"
    assert own.zeroed_bytes <= place
    assert place + plain.zeroed_bytes <= launch.workspace.zeroed_bytes
    assert place + plain.bytes <= after
    assert launch.workspace.bytes == own.bytes + after - dict(own.regions)["packed_a"]


def test_a_source_without_the_function_cannot_fall_back() -> None:
    with pytest.raises(
        DeclarationError, match=r"a fallback's source has an extern .* function 'gemm', found none"
    ):
        guarded("__global__ void gemm() {}", "gemm")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("epilogue", ["", "beta+bias-col+gelu+residual"])
def test_nvcc_compiles_the_exported_source_without_a_warning(epilogue: str, tmp_path: Path) -> None:
    of = replace(problem(512, 512, 512), epilogue=epilogue)
    (path,) = export(champion(KERNEL, of, dict(first(of))), KERNEL, of, "source", tmp_path)
    assert "Inputs that it does not take are computed by double_sums" in path.read_text()
    assert nvcc_warnings(path) == []
