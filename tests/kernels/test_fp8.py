"""Products of 8-bit numbers, without a GPU: their kernel compiles, scales meet the sums they belong to."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_models import H200
from probing import run_on_cpu
from products import gemm, kernel_of

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.epilogue import SCALES
from tuner.declare.kernel import render
from tuner.declare.launch import Launch
from tuner.declare.space import Config
from tuner.errors import InputError

CATALOGUE, KERNEL = builtin(), kernel_of("wgmma_fp8")
FOLDER = Path(__file__).resolve().parents[2] / "kernels" / "gemm" / "cuda"
EIGHT = "float8_e4m3fn"

#: Products of each block of k, as wgmma leaves them in the registers of a warpgroup: where the PTX manual says.
SCALED = """
extern "C" __global__ void
scaled(const float* given, const float* a, const float* b, float* c, int m, int n, int k)
{
    const Scales scales = {a, b, m, n, (k - 1) / SCALED + 1};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = 0; row < (SWAP ? n : m); row += 64)
        for (int column = 0; column < (SWAP ? m : n); column += 2 * SUMS) {
            float sum[SUMS] = {};
            for (int kept = 0; kept < 2; ++kept) {
                for (int block = 0; block < scales.blocks; ++block) {
                    float part[SUMS];
                    for (int i = 0; i < SUMS; ++i) {
                        const int down = row + warp * 16 + i / 2 % 2 * 8 + lane / 4;
                        const int right = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
                        const int y = SWAP ? right : down, x = SWAP ? down : right;
                        const bool inside = y < m && x < n;
                        part[i] = inside ? given[(block * m + y) * n + x] : 7.0f;
                        if (kept && inside) c[y * n + x] = sum[i];
                    }
                    if (!kept) scales.add(sum, part, scales.of_block(row, column, block), column);
                }
                if (!kept) scales.multiply(sum, row, column);
            }
        }
}
"""


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("width", [64, 160])
@pytest.mark.parametrize("scale", SCALES)
def test_scales_meet_the_sums_they_belong_to(scale: str, width: int, swap: int, folder: Path) -> None:
    m, n, k = 70, 330, 300
    names = (f"SCALES {SCALES.index(scale) + 1}", f"SUMS {width // 2}", f"SWAP {swap}")
    text = "\n".join([*(f"#define {name}" for name in names), (FOLDER / "scales.cuh").read_text(), SCALED])
    of, rng = gemm(m, n, k, "nt", EIGHT, epilogue=scale), np.random.default_rng(5)
    a, b = (rng.uniform(0.5, 2, tensor.shape).astype("float32") for tensor in of.inputs[2:])
    given = rng.integers(-64, 64, (3, m, n)).astype("float32")
    outputs = [("c", (m, n), "float32")]
    arrays = {"given": given, "a": a, "b": b}
    c = run_on_cpu(text, "scaled", arrays, outputs, folder, Launch((1,), (128,)), m=m, n=n, k=k)["c"]
    of_a, of_b = a[:, None], b
    if scale == "scale-block":
        of_a, of_b = a[:, :, None], b.repeat(128, 0)[:n].T[:, None, :]
    np.testing.assert_allclose(c, (given * of_a * of_b).sum(axis=0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("epilogue", "changes"), [
    ("scale-block", {"WIDTH": 160, "STAGES": 5}),
    ("scale-block", {"PARTS": 2}),
    ("b-e5m2+scale-block", {"SWAP": 1, "WIDTH": 64, "STAGES": 8, "SPLIT_K": 4}),
    ("a-e5m2+scale-line+to-float32", {"STORE": "registers", "CLUSTER_M": 2}),
    ("scale-tensor+bias-col+gelu-tanh+to-float16", {"WIDTH": 256, "STAGES": 4, "PROMOTE": 0}),
    ("", {"TEAM": "apart", "ROWS": 2, "WIDTH": 64, "STAGES": 8, "PROMOTE": 4}),
])  # fmt: skip
def test_sums_stay_in_registers_until_they_are_promoted(epilogue: str, changes: dict[str, Any]) -> None:
    nvrtc = pytest.importorskip("tuner.devices.cuda.nvrtc")
    of, config = gemm(4096, 4096, 2048, "nt", EIGHT, epilogue=epilogue), KERNEL.default_config()
    config = Config({**(config or {}), **changes})
    assert KERNEL.allows(of, H200, config)
    job = render(KERNEL, of, config)
    cubin, log = nvrtc.compile_cubin(job.text, "sm_90a", job.options)
    assert not re.search(r"C75(?!17)", log), "registers not set aside, or products one by one"
    assert log.count("C7517") < config.PARTS, "a wait at the first products of a tile at the most"
    assert nvrtc.read_report(log, cubin).spill_bytes == 0


@pytest.mark.parametrize("epilogue", ["", *SCALES, "scale-line+to-float32"])
@pytest.mark.parametrize("dims", [(64, 7168, 16384), (4096, 2112, 7168), (1, 8, 16), (1000, 776, 333)])
def test_every_shape_has_a_start(dims: tuple[int, int, int], epilogue: str) -> None:
    of = gemm(*dims, "nt", EIGHT, epilogue=epilogue)
    found = [config for config in KERNEL.first_configs() if KERNEL.allows(of, H200, config)]
    assert any(KERNEL.legal(of, H200, config) for config in found), "a study begins with what is worth trying"
    assert all(config.PROMOTE == 1 for config in found) or "scale-block" not in epilogue
    assert any(config.PROMOTE == 0 for config in found) == (dims[2] <= 2048 and "scale-block" not in epilogue)


def test_the_librarys_rows_have_a_multiple_of_16_bytes() -> None:
    library, of = kernel_of("cublaslt_fp8"), {"epilogue": "scale-block"}
    shapes = [(1000, 1312, 512), (1001, 1312, 512), (1000, 1300, 512), (1000, 1312, 500), (1000, 1312, 640)]
    problems = [gemm(*shape, "nt", EIGHT, **of) for shape in shapes]
    assert [library.legal(of, H200, library.first_configs()[0]) for of in problems] == [True, *[False] * 4]


def test_the_tolerance_lets_promoted_sums_pass_and_no_others() -> None:
    """Sums of bits that are cut off toward zero, 32 terms at a time as tensor cores take them."""
    of, rng = gemm(64, 64, 8192, "nt", EIGHT, epilogue="to-float32"), np.random.default_rng(3)
    a, b = (rng.standard_normal((64, of.k), "float32").astype(EIGHT).astype(float) for _ in "ab")
    right = a @ b.T

    def worst(promoted: int) -> float:
        total, kept = np.zeros_like(right), np.zeros_like(right)
        for first in range(0, of.k, 32):
            terms = [kept, *(np.outer(a[:, i], b[:, i]) for i in range(first, first + 32))]
            unit = 2.0 ** (np.floor(np.log2(np.abs(terms).max(axis=0))) - 13)
            kept = sum(np.trunc(term / unit) for term in terms) * unit
            if (first + 32) % promoted == 0:
                total, kept = total + kept, np.zeros_like(kept)
        away = abs(total - right) / (np.sqrt((right**2).mean()) + abs(right))
        return float(away.max()) / of.tolerance

    assert worst(128) < 0.5
    assert worst(of.k) > 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("of_a", "of_b", "of_dtype", "lead"), [
    ((1,), (1,), EIGHT, ()), ((70, 1), (330,), "float8_e5m2", ()), ((70, 3), (3, 3), EIGHT, ()),
    ((1,), (2,), EIGHT, (2,)), ((2, 70), (2, 1, 330), EIGHT, (2,)),
    ((2, 2, 70, 3), (2, 2, 3, 3), EIGHT, (2, 2)),
])  # fmt: skip
def test_arrays_and_stacks_are_multiplied_with_their_scales(
    of_a: tuple[int, ...], of_b: tuple[int, ...], of_dtype: str, lead: tuple[int, ...], library: str
) -> None:
    own, rng = pytest.importorskip(library), np.random.default_rng(3)
    a, b = (
        rng.standard_normal((*lead, 70, 300), "float32").astype(EIGHT),
        rng.standard_normal((*lead, 330, 300)).astype(of_dtype),
    )
    scales = [rng.uniform(0.5, 2, shape).astype("float32") for shape in (of_a, of_b)]
    wide = [scales[0].reshape(*of_a, 1) if of_a == (2, 70) else scales[0], scales[1]]
    if of_b[-2:] == (3, 3):
        wide = [wide[0].repeat(128, -1)[..., :300], wide[1].repeat(128, -2)[..., :300, :]]
        wide[1] = wide[1].repeat(128, -1)[..., :330]
    elif of_b == (2,):
        wide[1] = wide[1][:, None, None]
    right = (a.astype(float) * wide[0]) @ (b.astype(float).swapaxes(-1, -2) * wide[1])
    operands = [a, b]
    if library == "torch":
        operands = [own.tensor(x.astype("float32")).to(getattr(own, x.dtype.name)) for x in (a, b)]
    of_a_, of_b_ = (own.asarray(scale) for scale in scales)
    got = tuner.matmul(operands[0], operands[1].swapaxes(-1, -2), scale_a=of_a_, scale_b=of_b_, dtype="float32")
    assert got.dtype == own.float32
    np.testing.assert_allclose(np.asarray(got), right, rtol=1e-4, atol=1e-3)


def test_scales_of_other_shapes_and_for_other_arrays_are_refused() -> None:
    a, scale = np.zeros((8, 128), EIGHT), np.ones(7, "float32")
    with pytest.raises(TypeError, match=r"scales and dtype= are for two arrays of float8_e4m3fn, got float32"):
        tuner.matmul(a.astype("f4"), a.astype("f4").T, dtype="float16")
    with pytest.raises(ValueError, match=r"scale_a and scale_b have shapes .*, got \(7,\) and \(7,\)"):
        tuner.matmul(a, a.T, scale_a=scale, scale_b=scale)
    with pytest.raises(InputError, match=r"epilogue 'a-e5m2' is for .*, got bmm in float8_e4m3fn"):
        CATALOGUE.operation("bmm").problem(
            dict.fromkeys(("batch", "m", "n", "k"), 128), EIGHT, epilogue="a-e5m2"
        )
