"""Epilogues in kernels: results against float64 on poisoned outputs, and what compiles for which GPU."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fences import check
from gpu_models import H200
from probing import run_on_cpu
from products import GEMM, gemm, kernel_of
from sampling import space
from test_cuda_kernels import assert_right

from tuner.declare.catalogue import NO_EPILOGUE, builtin
from tuner.declare.epilogue import Epilogue
from tuner.declare.kernel import render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem, Scalar
from tuner.declare.space import Config
from tuner.devices.cpu.numba import ready
from tuner.devices.cublaslt.language import element_wise_source
from tuner.devices.cuda.nvrtc import compile_cubin

ALL = "alpha+beta+bias-col+gelu+residual"
#: Parts alone and together; every part is in one of them.
EPILOGUES = ("alpha+bias-row+relu", "beta+gelu-tanh", "bias-row+silu+residual", ALL)
TILE = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4, "LANES_M": 8, "SWATH": 1, "BLOCKS_PER_SM": 1}
WARP = TILE | {
    "STAGES": 2, "SPLIT_K": 1, "BLOCKS": 0, "TURN": "copy", "PITCH": 1, "ORDER": "rows", "ARRIVE": "end",
    "UNTIE": 0,
}  # fmt: skip
#: Kernel, config, dtype and epilogue that are run on the CPU; the shapes have edges in every dim.
EMULATED = [
    ("tiled", {"BLOCK": 8, "BORDER": "check", "ACCUMULATE": "kahan", "PITCH": 1}, "float32", ALL),
    ("register_tiled", TILE | {"VECTOR": 1}, "float32", EPILOGUES[1]),
    ("warp_tiled", WARP | {"VECTOR": 1, "SPLIT_K": 2}, "float32", EPILOGUES[2]),
    ("half_tiled", {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}, "float16", ALL),
    ("half_tiled", {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}, "bfloat16", EPILOGUES[2]),
]


def drawn(of: Problem) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {each.name: rng.standard_normal(each.shape).astype(of.dtype) for each in of.inputs}


@pytest.mark.parametrize(("name", "config", "dtype", "epilogue"), EMULATED)
def test_cuda_kernels_apply_it(name: str, config: dict, dtype: str, epilogue: str, folder: Path) -> None:
    for shape in ((37, 29, 21), (24, 40, 16)):
        assert_right(kernel_of(name), gemm(*shape, "tn", dtype, "", epilogue), Config(config), folder, "random")


def finished(
    name: str, text: str, of_gemm: Problem, sums: np.ndarray, threads: int, folder: Path
) -> tuple[np.ndarray, np.ndarray]:
    """What a function of a kernel makes of a product's sums, as its kernel does; and what is right."""
    read = Epilogue.read(of_gemm.epilogue)
    arrays = {name: array for name, array in drawn(of_gemm).items() if name in read.operands}
    factors = {scalar.name: scalar.value for scalar in of_gemm.scalars if scalar.given}
    launch, scalars = Launch((1,), (threads,)), of_gemm.scalars[1:2] + of_gemm.scalars[3:]
    inputs, outputs = {"sums": sums, **arrays}, [("c", sums.shape, of_gemm.dtype)]
    got = run_on_cpu(text, name, inputs, outputs, folder, launch, scalars=scalars, n=of_gemm.n)["c"]
    return got.astype("float64"), read.of(np, sums.astype("float64"), arrays | factors)


def source_of(of_gemm: Problem, files: Sequence[str], own: str) -> str:
    """A source behind some of the kernels' files, with the constants of a product."""
    folder = Path(str(kernel_of("half_tiled").source.file)).parent
    constants = GEMM.constants(of_gemm, "cuda").items()
    lines = [f"#define {name} {int(value) if isinstance(value, bool) else value}" for name, value in constants]
    return "\n".join([*lines, *((folder / file).read_text() for file in files), own])


#: A warp whose threads have the sums of 16 x 24 elements as wgmma leaves them; C is 13 x n.
FRAGMENTS = """
extern "C" __global__ void
fragments(const unsigned short* sums, EPILOGUE_OPERANDS unsigned short* c, int n EPILOGUE_FACTORS)
{
    float s[12];
    const int lane = threadIdx.x % 32, m = 13;
    for (int i = 0; i < 12; ++i) {
        const int row = i / 2 % 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        s[i] = row < m && column < n ? widened(sums[row * n + column]) : 0.0f;
    }
    BiasAhead<12> ahead;
    ahead.ask(EPILOGUE_GIVEN, 0, 0, m, n);
    finish_fragments(s, EPILOGUE_GIVEN, ahead, 0, 0, m, n);
    for (int i = 0; i < 12; ++i) {
        const int row = i / 2 % 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < m && column < n) c[row * n + column] = rounded(s[i]);
    }
}
"""


@pytest.mark.parametrize(
    ("n", "epilogue"), [(22, ALL), (21, ALL), (22, "bias-row+silu"), (24, "beta+gelu-tanh")]
)
def test_fragments_of_tensor_cores_are_finished_where_they_lie(n: int, epilogue: str, folder: Path) -> None:
    """What wgmma_tma adds to its plain form, which runs on no CPU."""
    of_gemm = gemm(13, n, 1, "nn", "bfloat16", "", epilogue)
    text = source_of(of_gemm, ("half.cuh", "epilogue.cuh"), FRAGMENTS)
    sums = np.random.default_rng(4).standard_normal((13, n)).astype("bfloat16")
    got, expected = finished("fragments", text, of_gemm, sums, 32, folder)
    np.testing.assert_allclose(got, expected, rtol=2.0**-8, atol=2.0**-9)


@pytest.mark.parametrize("epilogue", [ALL, "bias-row+silu"])
def test_the_exact_kernel_behind_emulated_products_finishes_them(epilogue: str, folder: Path) -> None:
    kernel = kernel_of("double_sums")
    small = {**kernel.default_config(), "BM": 32, "BN": 32, "WM": 16, "WN": 16, "STAGES": 3, "VECTOR": 1}
    for shares in (1, 2):
        of, config = gemm(36, 29, 50, "tn", "", "emulated", epilogue), Config({**small, "SPLIT_K": shares})
        assert_right(kernel, of, config, folder, "forward", "#define __CUDA_ARCH__ 900\n")


def test_every_launch_that_writes_the_result_is_given_operands_and_factors() -> None:
    read = Epilogue.read(ALL)
    for name, dtype, precision in (("emulated", "", "emulated"), ("wgmma_tma", "bfloat16", "")):
        kernel, of = kernel_of(name), gemm(512, 512, 512, "nn", dtype, precision, ALL)
        config = next(config for config in kernel.first_configs() if kernel.allows(of, H200, config))
        writing = [step.arguments for step in kernel.launched(of, config).steps if "c" in step.arguments]
        assert writing
        for arguments in writing:
            assert " ".join(read.operands) in " ".join(arguments)
            assert arguments[-len(read.factors) :] == read.factors


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "silu"])
def test_activations_in_16_bits_are_right_and_keep_a_nan_to_itself(activation: str, folder: Path) -> None:
    of_gemm = gemm(13, 22, 1, "nn", "float16", "", activation)
    text = source_of(of_gemm, ("half.cuh", "epilogue.cuh"), FRAGMENTS)
    sums = np.linspace(-9, 9, 13 * 22).reshape(13, 22).astype("float16")
    sums[0, :4] = 60000, -60000, np.inf, 1e-4
    sums[1, 2] = np.nan
    got, expected = finished("fragments", text, of_gemm, sums, 32, folder)
    assert np.isnan(got[1, 2])
    assert np.isnan(got).sum() == 1
    fine = ~np.isnan(expected)
    np.testing.assert_allclose(got[fine], expected[fine], rtol=2.0**-10, atol=2.0**-23)


@pytest.mark.parametrize(
    ("rest", "dtype"), [("bias-row+silu+residual", "float16"), ("bias-col+gelu", "float32")]
)
def test_the_librarys_kernel_behind_a_product_finishes_it(rest: str, dtype: str, folder: Path) -> None:
    """What is timed beside kernels where cuBLASLt has no such epilogue."""
    of_gemm = gemm(11, 9, 1, "nn", dtype, "", rest)
    operands = [own.name for own in of_gemm.tensors[2:-1]]
    # The runner gives back outputs alone, and C is finished in place: a copy of it goes out.
    text = element_wise_source(of_gemm, Epilogue.read(rest))
    kind = "unsigned short" if dtype == "float16" else "float"
    taken, passed = ("".join(f"{before}{name}, " for name in operands) for before in (f"{kind}* ", ""))
    text += f"""
extern "C" __global__ void copied({kind}* c, {taken}{kind}* out, long long count, int n)
{{
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = c[i];
    __syncthreads();
    finish(out, {passed}count, n);
}}
"""
    arrays = drawn(of_gemm)
    sums = np.random.default_rng(4).standard_normal((11, 9)).astype(dtype)
    given = {"c": sums} | {name: arrays[name] for name in operands}
    outputs, launch = [("out", (11, 9), dtype)], Launch(grid=(1,), block=(64,))
    scalars = (Scalar("count", "int64", 99), Scalar("columns", "int32", 9))
    got = run_on_cpu(text, "copied", given, outputs, folder, launch, scalars=scalars, n=9)["out"]
    got = got.astype("float64")
    expected = Epilogue.read(rest).of(np, sums.astype("float64"), arrays)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-22
    np.testing.assert_allclose(got, expected, rtol=unit, atol=unit)
    assert compile_cubin(element_wise_source(of_gemm, Epilogue.read(rest)), "sm_80")[0].startswith(b"\x7fELF")


@pytest.mark.parametrize(("name", "config", "epilogue"), [
    ("blocked", {"BLOCK": 16, "TRANSPOSE_B": False, "THREADS": 1}, ALL),
    ("naive", {"THREADS": 1}, "bias-row+silu"),
    ("naive", {"THREADS": 1}, "beta+gelu-tanh"),
])  # fmt: skip
def test_cpu_kernels_apply_it(name: str, config: dict, epilogue: str) -> None:
    of = gemm(37, 45, 29, epilogue=epilogue)
    check(ready(render(kernel_of(name, target="cpu"), of, Config(config)), of), of, size=1.0)


def test_other_kernels_have_no_config_for_it() -> None:
    of = gemm(4096, 4096, 4096, epilogue="bias-col")
    without = {kernel.name for kernel in builtin().of("gemm", "cuda") if not kernel.scope.epilogues}
    assert "thin" in without
    assert without.isdisjoint(kernel.name for kernel in builtin().of("gemm", "cuda", epilogue="bias-col"))
    for kernel in builtin().of("gemm", "cuda", ("thin", "small")):
        assert NO_EPILOGUE in [rule.sentence for rule in kernel.constraints]
        assert len(space(kernel, of)) == 0
